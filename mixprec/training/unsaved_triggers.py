"""Base classes of extensions whose triggers have no state, so that snapshots hold nothing of them."""

from chainer.training import extension


class EachIteration(extension.Extension):
    """An extension that is called after each iteration. Chainer's trigger would keep in snapshots when that was."""

    @staticmethod
    def trigger(trainer):
        """Fires always."""
        return True


class NeverCalled(extension.Extension):
    """An extension that only has something to save."""

    @staticmethod
    def trigger(trainer):
        """Never fires."""
        return False

    def __call__(self, trainer):
        """Does nothing."""

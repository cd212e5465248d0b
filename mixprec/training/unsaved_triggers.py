"""Base classes of extensions whose triggers have no state in snapshots."""

from chainer.training import extension


class EachIteration(extension.Extension):
    """An extension that is called after each iteration. Chainer's trigger would save the last call in snapshots."""

    @staticmethod
    def trigger(trainer):
        """Fires always."""
        return True


class NeverCalled(extension.Extension):
    """An extension that only saves state."""

    @staticmethod
    def trigger(trainer):
        """Never fires."""
        return False

    def __call__(self, trainer):
        """Does nothing."""

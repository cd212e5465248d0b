"""The running statistics of a model, so that a skipped step can leave them as they were."""

import chainer


class Statistics:
    """Copies of the persistent values of every link (``avg_mean``, ``avg_var`` and ``N`` of batch normalization).

    A forward pass in training mode moves them before anybody knows whether the step will be skipped.

    Args:
        model: the link whose statistics to guard.
    """

    def __init__(self, model):
        self._model = model
        self._saved = None

    def save(self):
        """Remembers the present values; call it before the forward pass."""
        self._saved = [
            (link, name, _copy(link.__dict__[name])) for link in self._model.links() for name in link._persistent
        ]

    def restore(self):
        """Brings the remembered values back, arrays in place; without :meth:`save` it does nothing."""
        for link, name, value in self._saved or ():
            now = link.__dict__[name]
            if isinstance(now, chainer.get_array_types()) and value is not None:
                now[...] = value
            elif value is not None:
                setattr(link, name, value)

    def forget(self):
        """Drops what :meth:`save` remembered."""
        self._saved = None


def _copy(value):
    return value.copy() if isinstance(value, chainer.get_array_types()) else value

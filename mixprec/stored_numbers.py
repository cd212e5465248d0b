"""Numbers in snapshots: the loss scale and the counters of steps save and load theirs by :func:`stored`."""

from chainer import Deserializer

from mixprec.backends.transfers import to_host


def stored(serializer, name, value):
    """Saves a number, or loads it, also from a file in which it need not be.

    Args:
        serializer: of Chainer's.
        name: name of the number.
        value: what to save, a number or an array of shape (), which is read if it is on a device.

    Returns:
        The number, as it was saved or loaded.

    Raises:
        KeyError: it is not in the file; a deserializer that is not strict gives back what it is given.
    """
    if not isinstance(serializer, Deserializer):
        return serializer(name, to_host(value))
    loaded = serializer(name, None)
    if loaded is None:
        raise KeyError(name)
    return loaded

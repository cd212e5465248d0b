"""The devices, streams and pools of ``fake_cupy``: there is one of each, and nothing is ever under way."""


class Device:
    """The only one."""

    compute_capability = "90"

    def __init__(self, device=None):
        self.id = 0 if device is None else int(device)

    def __int__(self):
        return self.id

    def __eq__(self, other):
        return isinstance(other, Device) and self.id == other.id

    def __hash__(self):
        return hash(self.id)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def use(self):
        return self

    def synchronize(self):
        pass


class Stream:
    """All of them are one, and nothing is ever under way."""

    ptr, done = 0, True

    def __init__(self, *arguments, **keywords):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def use(self):
        return self

    def synchronize(self):
        pass

    def is_capturing(self):
        return False

    def record(self, *arguments):
        return Event()

    def wait_event(self, event):
        pass


class Event(Stream):
    """See :class:`Stream`."""


class MemoryPool:
    """Of nothing."""

    def malloc(self, size):
        raise NotImplementedError("fake CuPy has no memory of its own")

    def free_all_blocks(self):
        pass

    def used_bytes(self):
        return 0

    total_bytes = n_free_blocks = used_bytes

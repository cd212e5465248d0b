"""The peak of a GPU's memory."""


def peak_of(hook_class, held):
    """Returns a memory hook of CuPy, in force in a ``with`` block, whose ``bytes`` are the most that pools have had.

    Args:
        hook_class: ``cupy.cuda.MemoryHook``.
        held: callable that returns the bytes that all pools have.
    """

    class Peak(hook_class):
        name = "benchmarks.Peak"
        bytes = 0

        def alloc_postprocess(self, *, mem_ptr, **_):
            if mem_ptr:  # what could not be allocated counts until CuPy has noticed
                self.bytes = max(self.bytes, held())

    return Peak()

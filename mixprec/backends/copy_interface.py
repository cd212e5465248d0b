"""The interface of copies between the memory of a device and another memory.

The work of the device runs in order on its current stream, called the *main stream* here. Copies away from the device
have their own stream, and so have copies back.
"""

import dataclasses

import numpy as np

from mixprec.base.interface import Interface


@dataclasses.dataclass(frozen=True)
class Layout:
    """The position of an array in the memory of its root.

    Attributes:
        offset: of its first element, bytes.
        shape, dtype, strides: as of the array.
    """

    offset: int
    shape: tuple
    dtype: np.dtype
    strides: tuple


class Copies(Interface):
    """Copies between a device and another memory.

    A *root* is the object that owns a whole piece of device memory, which exists as long as the root. A *slot* is a
    part of the other memory. A *mark* is the end of a copy.

    A round of training ends with :meth:`join`, also after an error. All methods except :meth:`give` are called by one
    thread.
    """

    # Memory of the device

    def root_of(self, array):
        """Returns the root of the memory in which an array lies, or ``None`` if that cannot be moved."""

    def size_of(self, root):
        """Returns the number of bytes of a root."""

    def token_of(self, root):
        """Returns a weak token of a root: always the same object, which disappears with the memory.

        It does not keep the memory alive, and callers may keep only weak references to it. CuPy does not allow weak
        references to the root itself. Unlike roots of NumPy it has a hash, and :meth:`out` accepts it instead of the
        root as long as the memory exists.
        """

    def layout_of(self, array):
        """Returns the :class:`Layout` of an array that has a root."""

    def array_in(self, root, layout):
        """Returns an array in the memory of a root, which it keeps."""

    # The other memory

    def take(self, size):
        """Returns a slot of this size, reusing one that was given back if possible.

        Raises:
            OneLineError: the other memory is full.
        """

    def give(self, slot):
        """Gives a slot back, which may be taken again at once: copies are in order. Any thread may do it."""

    def trim(self):
        """Frees the memory of slots that were given back, except slots that are part of a CUDA graph."""

    # Copies

    def out(self, root, slot):
        """Starts to copy a whole root, or its token, to a slot; returns a mark.

        The copy waits for all earlier work of the main stream, and for earlier copies to and from the slot. Before the
        memory is written to or released, :meth:`wait` has to be called.
        """

    def back(self, slot):
        """Takes memory for the main stream and starts to copy a slot there; returns ``(root, mark)``.

        It waits for all earlier work of the main stream, and for the copy to the slot. Before the memory is used or
        released, :meth:`wait` has to be called.

        Raises:
            MemoryError: the device has no memory left; CuPy's exception for that.
        """

    def wait(self, mark):
        """Makes later work of the main stream wait for a copy.

        Raises:
            OneLineError: the copy has failed, for example as the disk is full.
        """

    def join(self):
        """Makes later work of the main stream wait for all copies; required at the end of a capture.

        No error of a copy is raised.
        """

    # Measuring

    def measuring(self):
        """A context in which :meth:`peak` works."""

    def peak(self):
        """Returns the peak of bytes of the device in use since the last call, or since the context began.

        On NumPy that is the memory that the process had when the context began, and what it has allocated since.
        """

    def allocated(self):
        """Returns the bytes of the device in use now, also outside :meth:`measuring`."""

    def tick(self):
        """Returns a token of the time at which the main stream has done all earlier work."""

    def seconds(self, start, end):
        """Returns the seconds between two tokens of :meth:`tick`; the host waits for them."""

    def total(self):
        """Returns the memory of the device in bytes."""

    def bus(self):
        """Returns ``(out, back, latency)``: bytes per second of both directions at once, seconds of a small copy.

        Measured in the first call, for which the host waits; the same numbers later.
        """

    def close(self):
        """Waits for running copies, and releases everything."""

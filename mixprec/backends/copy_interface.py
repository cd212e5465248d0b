"""The interface of copies between the memory of a device and another memory.

The work of the device is in the order in which it is asked for, on what is the current stream: the *main stream* here.
Copies away from the device have a stream of their own, and so have copies back.
"""

import dataclasses

import numpy as np

from mixprec.base.interface import Interface


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where an array lies in the memory of its root.

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

    A *root* is the object that owns a whole piece of memory of the device: as long as somebody has it, the memory is
    there. A *slot* is a place in the other memory. A *mark* is the end of a copy.

    A round of training ends with :meth:`join`, also after an error. All methods but :meth:`give` are called by one
    thread.
    """

    # Memory of the device

    def root_of(self, array):
        """Returns the root of the memory in which an array lies, or ``None`` if that cannot be moved."""

    def size_of(self, root):
        """Returns the number of bytes of a root."""

    def token_of(self, root):
        """Returns what stands for a root weakly: always the same object, which is gone when the memory is.

        It does not keep the memory, and nothing but weak references to it may be kept. A weak reference to the root
        itself is not possible on CuPy. It has a hash, as roots of NumPy have not, and :meth:`out` takes it for the root
        as long as the memory is there.
        """

    def layout_of(self, array):
        """Returns the :class:`Layout` of an array that has a root."""

    def array_in(self, root, layout):
        """Returns an array in the memory of a root, which it keeps."""

    # The other memory

    def take(self, size):
        """Returns a slot for so many bytes, one that was given back if there is one of that size.

        Raises:
            OneLineError: there is no memory left for it.
        """

    def give(self, slot):
        """Gives a slot back, which may be taken again at once: copies are in order. Any thread may do it."""

    def trim(self):
        """Frees the memory of slots that were given back, but of those that are part of a CUDA graph."""

    # Copies

    def out(self, root, slot):
        """Starts to copy a whole root, or its token, to a slot; returns a mark.

        The copy comes after all that the main stream was asked so far, and after earlier copies to and from the slot.
        Before the memory is written to or given back, :meth:`wait` has to be called.
        """

    def back(self, slot):
        """Takes memory for the main stream and starts to copy a slot there; returns ``(root, mark)``.

        That comes after all that the main stream was asked so far, and after the copy to the slot. Before the memory is
        used or given back, :meth:`wait` has to be called.

        Raises:
            MemoryError: the device has no memory left; CuPy's exception for that.
        """

    def wait(self, mark):
        """What the main stream is asked from now on comes after a copy.

        Raises:
            OneLineError: the copy has failed, as the disk is full.
        """

    def join(self):
        """What the main stream is asked from now on comes after all copies, which must be so at the end of a capture.

        No error of a copy is raised.
        """

    # Measuring

    def measuring(self):
        """A context in which :meth:`peak` works."""

    def peak(self):
        """Returns how many bytes of the device were in use at most since the last call, or since the context began.

        On NumPy that is the memory that the process had when the context began, and what it has allocated since.
        """

    def allocated(self):
        """Returns how many bytes of the device are in use now, also outside of :meth:`measuring`."""

    def tick(self):
        """Returns a token of the time at which the main stream has done all that it was asked so far."""

    def seconds(self, start, end):
        """Returns the seconds between two tokens of :meth:`tick`; the host waits for them."""

    def total(self):
        """Returns the number of bytes of memory that the device has."""

    def bus(self):
        """Returns ``(out, back, latency)``: bytes per second of both directions at once, seconds of a small copy.

        Measured in the first call, for which the host waits; the same numbers later.
        """

    def close(self):
        """Waits for copies that are under way, and gives everything up."""

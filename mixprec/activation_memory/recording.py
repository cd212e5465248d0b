"""A record of one round of training: its events, and the buffers that wait for the backward pass.

A *round* is the forward passes up to the end of their backward pass. An *event* is one function node that goes forward
or backward; events are numbered in the order in which they run. A *buffer* is one block of device memory with arrays
that function nodes retain.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Event:
    """A function node that goes forward or backward.

    Attributes:
        name: label of the function.
        is_forward: whether it goes forward.
        seconds: computing time of the device.
        others: bytes in use at the peak of the event outside of all buffers: parameters, gradients, workspaces.
    """

    name: str
    is_forward: bool
    seconds: float
    others: int


@dataclasses.dataclass(frozen=True)
class Recomputation:
    """How a buffer can be recomputed.

    Attributes:
        seconds: time that it takes.
        sources: numbers of the buffers from which it is computed.
    """

    seconds: float
    sources: tuple


@dataclasses.dataclass(frozen=True)
class Buffer:
    """Memory that function nodes retain.

    It exists from the event ``made`` on. Its last use in the forward pass ends with the event ``held``. Each event of
    ``needs`` reads it in the backward pass; after the last of them its memory may be released.

    Attributes:
        size: bytes.
        producer: label of the function that made it, with the path of its link if known.
        made: number of the event in which it was made; its contents do not change after that event.
        held: number of the last event in which something besides the graph holds it: a later function, or a variable of
            the user's code. Its memory cannot be released before the end of this event.
        needs: numbers of the events of the backward pass that read it, in order; not empty.
        recomputation: :class:`Recomputation`, or ``None`` if it cannot be recomputed.
        is_convolution_input: whether a convolution retains it as its input.
    """

    size: int
    producer: str
    made: int
    held: int
    needs: tuple
    recomputation: Recomputation | None = None
    is_convolution_input: bool = False


@dataclasses.dataclass(frozen=True)
class Recording:
    """A recorded round.

    Attributes:
        events: tuple of :class:`Event`.
        buffers: tuple of :class:`Buffer`, in the order in which they were made.
    """

    events: tuple
    buffers: tuple


@dataclasses.dataclass(frozen=True)
class Bus:
    """The connection that moves buffers to another memory and back, in both directions at once.

    Attributes:
        out: bytes per second away from the device.
        back: bytes per second to the device.
        latency: seconds that each copy takes in addition.
    """

    out: float
    back: float
    latency: float = 0.0

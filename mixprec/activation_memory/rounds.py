"""One round of training under :func:`mixprec.offload`: its events, its buffers, and what happens to them.

:class:`Round` is told of each function node that goes forward or backward. It finds what that has retained, and asks
its :class:`Policy` when buffers leave the device and come back. Before a function goes backward its arrays are in their
places, whatever the policy did: a plan that does not fit costs time or memory, and never changes a number.
"""

import weakref

from mixprec.activation_memory import retained
from mixprec.activation_memory.buffers import LiveBuffer, Recipe, recipe_of

_BUFFERS = "_offloaded"  # attribute of function nodes: their buffers, which live as long as they do


class Policy:
    """Decides when buffers leave and come back; this one decides nothing, and all stay."""

    def before(self, number, event):
        """Is called before an event of the backward pass.

        Args:
            number: of the event.
            event: its signature, see :attr:`Round.signature`.
        """

    def after(self, number, event, buffers):
        """Is called after an event.

        Args:
            number: of the event.
            event: its signature.
            buffers: list of :class:`~mixprec.activation_memory.buffers.LiveBuffer` that the function has retained.
        """


class LeaveAtOnce(Policy):
    """Each buffer leaves as soon as it is retained, and comes back when it is read: the least memory, and no overlap.

    Rounds are recorded in this way, as they might not fit otherwise.
    """

    def after(self, number, event, buffers):
        for buffer in buffers:
            buffer.copy_out()
            buffer.leave()


class Round:
    """The events and buffers of one round.

    Args:
        copies: :class:`~mixprec.backends.copies.Copies` of the device.
        smallest: bytes; smaller arrays stay.
        policy: :class:`Policy`.
        meter: :class:`~mixprec.activation_memory.metering.Meter`, which measures the round, or ``None``.

    Attributes:
        signature: a list of ``(whether it goes forward, class of the function, sizes of new buffers)`` of events.
        names: labels of their functions.
        functions: the function nodes, as weak references.
        buffers: list of :class:`~mixprec.activation_memory.buffers.LiveBuffer`, in the order in which they were made.
        recipes: ``{number of a buffer: (numbers of the events that compute it again, numbers of buffers that these
            read)}``, of a round that is measured.
        is_backward: whether a backward pass has begun.
    """

    def __init__(self, copies, smallest, policy, meter=None):
        self.copies = copies
        self.policy = policy
        self.meter = meter
        self.signature = []
        self.names = []
        self.functions = []
        self.buffers = []
        self.recipes = {}
        self.is_backward = False
        self._smallest = smallest
        self._known = weakref.WeakKeyDictionary()  # token of memory -> its buffer, as long as it is there

    @property
    def is_abandoned(self):
        """Whether the graph of the round is gone, though none of it went backward."""
        return not self.is_backward and all(function() is None for function in self.functions)

    def forward(self, function):
        """Takes note of a function node that has gone forward, and is a part of a graph."""
        number = len(self.signature)
        buffers = vars(function)[_BUFFERS] = self._retain(function)
        new = tuple([buffer.size for buffer in buffers if buffer.made == number])
        self._begin(function, True, new)
        self._end(number, buffers)

    def _retain(self, function):
        """Returns the buffers of what a function node has retained, and refers to no array any more."""
        buffers = {}  # as a set in order
        leaves = list(filter(None, (self._token(array) for array in retained.leaves_of(function))))
        for place, array in retained.places_of(function):
            token = self._token(array)
            if token is None or any(token is leaf for leaf in leaves):
                continue
            buffer = self._known.get(token)
            if buffer is None:
                root = self.copies.root_of(array)
                if self.copies.size_of(root) < self._smallest:
                    continue
                buffer = self._new_buffer(root, token, _producer(place, function, array))
            buffer.add(place, array)
            buffer.is_convolution_input |= place.name == "_data" and retained.is_convolution(function)
            buffers[buffer] = None
        return list(buffers)

    def _token(self, array):
        root = self.copies.root_of(array)
        return None if root is None else self.copies.token_of(root)

    def _new_buffer(self, root, token, producer):
        buffer = LiveBuffer(len(self.buffers), self.copies, root, len(self.signature), producer)
        self.buffers.append(buffer)
        self._known[token] = buffer
        weakref.finalize(token, _is_free, weakref.ref(self), weakref.ref(buffer)).atexit = False
        if self.meter is not None:
            self.meter.came(buffer.size)
        return buffer

    def backward(self, function, step):
        """Brings the arrays of a function back, and lets it go backward.

        Args:
            function: function node.
            step: function without arguments that does so.
        """
        buffers = vars(function).get(_BUFFERS)
        if buffers is None:
            step()
            return
        if not self.is_backward:
            self._turn()
        number = self._begin(function, False, ())
        self.policy.before(number, self.signature[number])
        for buffer in buffers:
            self._ensure(buffer)
            buffer.needs.append(number)
        if self.meter is not None:
            self.meter.resume()
        step()
        self._end(number, buffers)

    def _turn(self):
        """Finds out, at the end of the forward pass, how buffers can be computed again."""
        self.is_backward = True
        at = {node: buffer for buffer in self.buffers for node in buffer.nodes}
        numbers = {function(): number for number, function in enumerate(self.functions)}
        for buffer in self.buffers:
            is_lost = not buffer.is_here and not buffer.has_copy
            if is_lost or (self.meter is not None and buffer.is_live):
                functions, sources = recipe_of(buffer, at) or ((), ())
                # A later function might not retain its input, if the next round turns out to be another one.
                if functions and all(source.made <= buffer.made for source in sources):
                    buffer.recipe = Recipe(buffer, functions, sources, self.copies) if is_lost else None
                    self.recipes[buffer.number] = (
                        tuple([numbers[function] for function in functions]),
                        tuple([source.number for source in sources]),
                    )

    def _ensure(self, buffer):
        was_restored = buffer.is_restored
        buffer.ensure()
        if buffer.is_restored and not was_restored and self.meter is not None:
            self.meter.came(buffer.size)

    def _begin(self, function, is_forward, new):
        number = len(self.signature)
        if self.meter is not None and not is_forward:
            self.meter.lap(number)
        self.signature.append((is_forward, type(function), new))
        self.names.append(function.label)
        self.functions.append(weakref.ref(function))
        return number

    def _end(self, number, buffers):
        if self.meter is not None:
            self.meter.lap(len(self.signature) - 1)
        restored = [buffer for buffer in buffers if buffer.is_restored]
        self.policy.after(number, self.signature[number], buffers)
        if self.meter is not None:
            for buffer in restored:
                if not buffer.is_restored:
                    self.meter.went(buffer.size)
            self.meter.resume()

    def evict(self):
        """Lets all buffers leave, after a plan has turned out to be that of another round."""
        for buffer in self.buffers:
            if buffer.is_here and buffer.is_live:
                buffer.copy_out()
                buffer.leave()

    def measure(self, meter):
        """Begins to measure, after the first event."""
        self.meter = meter
        for buffer in self.buffers:
            meter.came(buffer.size)
        meter.start()

    def settle(self):
        """Lets the device wait for all copies that are under way."""
        for buffer in self.buffers:
            buffer.settle()
        self.copies.join()


def _producer(place, function, array):
    """Returns what made an array, for messages: the label of a function, and the shape."""
    maker = getattr(place.owner, "creator_node", None) or function
    return f"{maker.label} {array.shape}"


def _is_free(round_reference, buffer_reference):
    """Is called when the memory that the forward pass has left is given back."""
    within, buffer = round_reference(), buffer_reference()
    if within is not None and buffer is not None:
        buffer.held = len(within.signature) - 1
        if within.meter is not None:
            within.meter.went(buffer.size)

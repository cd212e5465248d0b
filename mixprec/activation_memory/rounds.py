"""One round of training under :func:`mixprec.offload`: its events, its buffers, and what happens to them.

:class:`Round` is told of each function node that goes forward or backward. It finds what that has retained, and asks
its :class:`Policy` when buffers leave the device and come back. Before a function goes backward its arrays are in their
places, whatever the policy did: a plan that does not fit costs time or memory, and never changes a number.
"""

import functools
import weakref

from mixprec.activation_memory import retained
from mixprec.activation_memory.buffers import LiveBuffer, compute_again, recipe_of
from mixprec.functions.node import OFFLOADED

_WHOLE = 16  # memory of so many times an array is something else, of which it is a part: all images, say


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
        memory: :class:`Memory`, which all rounds share.
        meter: :class:`~mixprec.activation_memory.metering.Meter`, which measures the round, or ``None``.

    Attributes:
        signature: a list of ``(whether it goes forward, class of the function, sizes of new buffers)`` of events.
        names: labels of their functions.
        functions: the function nodes, as weak references.
        buffers: list of :class:`~mixprec.activation_memory.buffers.LiveBuffer`, in the order in which they were made.
        recipes: ``{number of a buffer: (numbers of the events that compute it again, numbers of buffers that these
            read)}``, of a round that is measured.
        read_later: set of the numbers of buffers that were read after the round, or after their last use in its plan.
        is_backward: whether a backward pass has begun.
    """

    def __init__(self, copies, smallest, policy, memory, meter=None):
        self.copies = copies
        self.policy = policy
        self.meter = meter
        self.signature = []
        self.names = []
        self.functions = []
        self.buffers = []
        self.recipes = {}
        self.read_later = set()
        self.is_backward = False
        self._smallest = smallest
        self._memory = memory
        self._at = weakref.WeakKeyDictionary()  # variable node -> buffer

    @property
    def is_abandoned(self):
        """Whether the graph of the round is gone, though none of it went backward."""
        return not self.is_backward and all(function() is None for function in self.functions)

    def forward(self, function):
        """Takes note of a function node that has gone forward, and is a part of a graph."""
        number = len(self.signature)
        buffers = vars(function)[OFFLOADED] = self._retain(function)
        new = tuple([buffer.size for buffer in buffers if buffer.made == number and self.owns(buffer)])
        self._begin(function, True, new)
        self._end(number, buffers)

    def _retain(self, function):
        """Returns the buffers of what a function node has retained, and refers to no array any more."""
        buffers, memory = {}, self._memory  # the first one is a set in order
        for array in retained.leaves_of(function):
            token = self.token(array)
            if token is not None and memory.buffer_of(token) is None:
                memory.leaves.add(token)
        for place, array in retained.places_of(function):
            token = self.token(array)
            if token is None or token in memory.leaves:
                continue
            buffer = memory.buffer_of(token)
            if buffer is None:
                root = self.copies.root_of(array)
                size = self.copies.size_of(root)
                if size < self._smallest or size > _WHOLE * array.nbytes:
                    continue
                buffer = self._new_buffer(root, token, _producer(place, function, array))
                memory.know(token, buffer)
            buffer.add(place, array)
            buffer.is_convolution_input |= place.name == "_data" and retained.is_convolution(function)
            if place.name == "_data" and self.owns(buffer):
                self._at[place.owner] = buffer
            buffers[buffer] = None
        for index in function._input_indexes_to_retain or ():
            node = function.inputs[index]
            if node.data is None and node in self._at:  # it has left, before this function was known
                buffers[self._at[node]] = None
        return list(buffers)

    def owns(self, buffer):
        """Whether a buffer is one of this round, not of an earlier one."""
        return buffer.number < len(self.buffers) and self.buffers[buffer.number] is buffer

    def token(self, array):
        """Returns what stands for the memory of an array, see ``Copies.token_of``, or ``None``."""
        root = self.copies.root_of(array)
        return None if root is None else self.copies.token_of(root)

    def _new_buffer(self, root, token, producer):
        buffer = LiveBuffer(len(self.buffers), self.copies, root, len(self.signature), producer, self.read_later)
        self.buffers.append(buffer)
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
        buffers = vars(function).get(OFFLOADED)
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
        """Finds out, at the end of the forward pass, which buffers can be computed again."""
        self.is_backward = True
        if self.meter is None:
            return
        numbers = {function(): number for number, function in enumerate(self.functions)}
        for buffer in self.buffers:
            found = self._recipe_of(buffer)
            if found is not None and all(function in numbers for function in found[0]):
                functions, sources = found
                self.recipes[buffer.number] = (
                    tuple([numbers[function] for function in functions]),
                    tuple([source.number for source in sources]),
                )

    def _recipe_of(self, buffer):
        found = recipe_of(buffer, self._at)
        # What is retained later only might not be retained in another round that begins in the same way.
        return None if found is None or any(source.made > buffer.made for source in found[1]) else found

    def find_recipe(self, buffer):
        """Says how a buffer is computed again, if it can be: its ``recipe``."""
        found = self._recipe_of(buffer)
        if found is not None:
            functions, sources = found
            node = next(node for node in buffer.nodes if node.creator_node is functions[-1])
            buffer.recipe = functools.partial(compute_again, node, functions, sources, self.copies)

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

    def settle(self):
        """Lets the device wait for all copies that are under way."""
        for buffer in self.buffers:
            buffer.settle()
        self.copies.join()

    def end(self):
        """Ends the round: a graph of it that is still there keeps what it needs."""
        self.settle()
        for buffer in self.buffers:
            if not self.is_backward and buffer.is_live and not buffer.has_copy:
                buffer.ensure()
            buffer.is_over = True
            buffer.recipe = None
        self.policy = Policy()  # which refers to this round


class Memory:
    """The memory of a device, as rounds know it.

    Attributes:
        leaves: set of the tokens of what no function has computed, such as parameters and batches.
    """

    def __init__(self):
        self._known = weakref.WeakKeyDictionary()
        self.leaves = weakref.WeakSet()

    def buffer_of(self, token):
        """Returns the buffer of memory, if a graph still has it, or ``None``."""
        reference = self._known.get(token)
        return None if reference is None else reference()

    def know(self, token, buffer):
        """Takes note of the buffer of memory."""
        self._known[token] = weakref.ref(buffer)


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

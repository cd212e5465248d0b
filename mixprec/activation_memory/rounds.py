"""One round of training under :func:`mixprec.offload`: its events, and the handling of its buffers.

:class:`Round` is called for each function node that goes forward or backward. It finds the arrays that the node has
retained, and asks its :class:`Policy` when buffers leave the device and come back. Before a function goes backward its
arrays are restored, whatever the policy did: an unsuitable plan costs time or memory, and never changes a number.
"""

import functools
import weakref

from mixprec.activation_memory import retained
from mixprec.activation_memory.buffers import LiveBuffer, compute_again, recipe_of
from mixprec.functions.node import OFFLOADED

_WHOLE = 16  # an array in memory this many times its size is a part of something else, such as all images


class Policy:
    """Decides when buffers leave and come back; in this base class all stay."""

    def before(self, number, event):
        """Called before an event of the backward pass.

        Args:
            number: number of the event.
            event: its signature, see :attr:`Round.signature`.
        """

    def after(self, number, event, buffers):
        """Called after an event.

        Args:
            number: number of the event.
            event: its signature.
            buffers: list of :class:`~mixprec.activation_memory.buffers.LiveBuffer` that the function has retained.
        """


class LeaveAtOnce(Policy):
    """Each buffer leaves as soon as it is retained, and comes back when it is read: least memory, no overlap.

    Rounds are recorded with this policy, as they might not fit otherwise.
    """

    def after(self, number, event, buffers):
        for buffer in buffers:
            buffer.copy_out()
            buffer.leave()


class Round:
    """The events and buffers of one round.

    Args:
        copies: :class:`~mixprec.backends.copy_interface.Copies` of the device.
        smallest: bytes; smaller arrays stay.
        policy: :class:`Policy`.
        memory: :class:`Memory`, shared by all rounds.
        meter: :class:`~mixprec.activation_memory.metering.Meter`, which measures the round, or ``None``.

    Attributes:
        signature: a list of ``(whether it goes forward, class of the function, sizes of new buffers)`` of events.
        names: labels of the functions of the events.
        functions: the function nodes of the events, as weak references.
        buffers: list of :class:`~mixprec.activation_memory.buffers.LiveBuffer`, in the order in which they were made.
        recipes: ``{number of a buffer: (numbers of the events that recompute it, numbers of buffers that these
            read)}``, for a measured round.
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
        """Whether the graph of the round is gone although none of it went backward."""
        return not self.is_backward and all(function() is None for function in self.functions)

    def forward(self, function):
        """Records a function node of a graph that has gone forward."""
        number = len(self.signature)
        buffers = vars(function)[OFFLOADED] = self._retain(function)
        new = tuple([buffer.size for buffer in buffers if buffer.made == number and self.owns(buffer)])
        self._begin(function, True, new)
        self._end(number, buffers)

    def _retain(self, function):
        """Returns the buffers of the arrays that a function node has retained, keeping no reference to them."""
        buffers, memory = {}, self._memory  # buffers is an ordered set
        for array in retained.leaves_of(function):
            token = self.token(array)
            if token is not None and memory.buffer_of(token) is None:
                memory.leaves.add(token)
        for reference, array in retained.references_of(function):
            token = self.token(array)
            if token is None or token in memory.leaves:
                continue
            buffer = memory.buffer_of(token)
            if buffer is None:
                root = self.copies.root_of(array)
                size = self.copies.size_of(root)
                if size < self._smallest or size > _WHOLE * array.nbytes:
                    continue
                buffer = self._new_buffer(root, token, _producer(reference, function, array))
                memory.know(token, buffer)
            buffer.add(reference, array)
            buffer.is_convolution_input |= reference.name == "_data" and retained.is_convolution(function)
            if reference.name == "_data" and self.owns(buffer):
                self._at[reference.owner] = buffer
            buffers[buffer] = None
        for index in function._input_indexes_to_retain or ():
            node = function.inputs[index]
            if node.data is None and node in self._at:  # it left before this function was known
                buffers[self._at[node]] = None
        return list(buffers)

    def owns(self, buffer):
        """Whether a buffer belongs to this round, not to an earlier one."""
        return buffer.number < len(self.buffers) and self.buffers[buffer.number] is buffer

    def token(self, array):
        """Returns the token for the memory of an array, see ``Copies.token_of``, or ``None``."""
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
        """Restores the arrays of a function, and runs its backward.

        Args:
            function: function node.
            step: function without arguments that runs the backward.
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
        """Finds, at the end of the forward pass, the buffers that can be recomputed."""
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
        # An array that is only retained later might not be retained in another round that begins in the same way.
        return None if found is None or any(source.made > buffer.made for source in found[1]) else found

    def find_recipe(self, buffer):
        """Sets the ``recipe`` of a buffer, if it can be recomputed."""
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
        """Makes all buffers leave, after the plan has turned out not to fit the round."""
        for buffer in self.buffers:
            if buffer.is_here and buffer.is_live:
                buffer.copy_out()
                buffer.leave()

    def measure(self, meter):
        """Starts to measure, after the first event."""
        self.meter = meter
        for buffer in self.buffers:
            meter.came(buffer.size)

    def settle(self):
        """Makes the device wait for all running copies."""
        for buffer in self.buffers:
            buffer.settle()
        self.copies.join()

    def end(self):
        """Ends the round; a live graph keeps the buffers that it needs."""
        self.settle()
        for buffer in self.buffers:
            if not self.is_backward and buffer.is_live and not buffer.has_copy:
                buffer.ensure()
            buffer.is_over = True
            buffer.recipe = None
        self.policy = Policy()  # the old one refers to this round


class Memory:
    """Device memory that rounds have seen.

    Attributes:
        leaves: set of the tokens of arrays that were not computed by functions, such as parameters and batches.
    """

    def __init__(self):
        self._known = weakref.WeakKeyDictionary()
        self.leaves = weakref.WeakSet()

    def buffer_of(self, token):
        """Returns the buffer with this token, if a graph still has it, or ``None``."""
        reference = self._known.get(token)
        return None if reference is None else reference()

    def know(self, token, buffer):
        """Registers a buffer under the token of its memory."""
        self._known[token] = weakref.ref(buffer)


def _producer(reference, function, array):
    """Returns the origin of an array, for messages: the label of its function, and the shape."""
    maker = getattr(reference.owner, "creator_node", None) or function
    return f"{maker.label} {array.shape}"


def _is_free(round_reference, buffer_reference):
    """Called when memory that the forward pass no longer uses is freed."""
    within, buffer = round_reference(), buffer_reference()
    if within is not None and buffer is not None:
        buffer.held = len(within.signature) - 1
        if within.meter is not None:
            within.meter.went(buffer.size)

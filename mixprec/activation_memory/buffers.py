"""The memory of retained arrays while a round runs: on the device, in another memory, or on its way.

A :class:`LiveBuffer` is one piece of memory with all places of the graph that refer to arrays in it. Whatever a plan
says, :meth:`LiveBuffer.ensure` brings its arrays back before a function reads them.
"""

import weakref

import chainer

from mixprec.activation_memory import retained

_LONGEST = 3  # functions that are computed again for one buffer, at most


class LiveBuffer:
    """One piece of memory of a device, with arrays that function nodes have retained.

    Args:
        number: place in the order in which buffers of the round were made.
        copies: :class:`~mixprec.backends.copies.Copies` of the device.
        root: owner of the memory, see ``Copies.root_of``; it is not kept.
        made: number of the event in which it was found.
        producer: what made it, for messages.
        read_later: set of the numbers of buffers that were read when they had left for good, to which it may be added.

    Attributes:
        size: bytes.
        held: number of the event after which its memory was free on the device, or ``None``.
        needs: numbers of the events of the backward pass that have read it.
        is_here: whether its arrays are in their places.
        is_restored: whether its arrays are in memory that a copy back, or a computation, has filled.
        is_convolution_input: whether a convolution retains it as its input.
        is_over: whether it has left for good, as far as its round knows.
        recipe: function that computes it again in place of a copy, see :func:`compute_again`; or ``None``.
    """

    def __init__(self, number, copies, root, made, producer, read_later):
        self.number = number
        self.made = made
        self.producer = producer
        self.size = copies.size_of(root)
        self.held = None
        self.needs = []
        self.is_here = True
        self.is_restored = False
        self.is_convolution_input = False
        self.is_over = False
        self._read_later = read_later
        self.recipe = None
        self._copies = copies
        self._token = weakref.ref(copies.token_of(root))
        self._places = {}  # key -> (place, layout)
        self._slot = None
        self._leaving = None  # mark of the copy to the slot that the device has not waited for
        self._coming = None  # (root, mark) of the copy from there

    @property
    def has_copy(self):
        """Whether there is a copy in the other memory, or on its way there."""
        return self._slot is not None

    @property
    def nodes(self):
        """List of the variable nodes whose arrays lie in it."""
        owners = [place.owner for place, _ in self._places.values() if place.name == "_data"]
        return [owner for owner in owners if owner is not None]

    @property
    def is_live(self):
        """Whether a graph that is still there refers to it."""
        return any(place.owner is not None for place, _ in self._places.values())

    def add(self, place, array):
        """Notes a place that refers to an array in this memory."""
        self._places[place.key] = place, self._copies.layout_of(array)
        if not self.is_here:  # a function has retained it once more, from a variable of the user's code
            place.put(None)

    def copy_out(self):
        """Begins to copy the memory, once; it is still on the device."""
        if self._slot is not None or not self.is_here:
            return
        root = self._root_among([place.get() for place, _ in self._places.values()])
        if root is not None:
            self._slot = self._copies.take(self.size)
            weakref.finalize(self, self._copies.give, self._slot).atexit = False
            self._leaving = self._copies.out(root, self._slot)

    def _root_among(self, arrays):
        """Returns the owner of the memory, if one of some arrays, or ``None``, lies in it."""
        token = self._token()
        for array in arrays:
            root = None if array is None else self._copies.root_of(array)
            if root is not None and token is not None and self._copies.token_of(root) is token:
                return root
        return None

    def leave(self):
        """Takes the arrays out of their places, after the copy is done; they stay if there is no way back."""
        if self._slot is None and self.recipe is None and not self.is_over:
            return
        self._wait_for_copy_out()
        for place, _ in self._places.values():
            place.put(None)
        self.is_here = self.is_restored = False

    def _wait_for_copy_out(self):
        if self._leaving is not None:
            self._copies.wait(self._leaving)
            self._leaving = None

    def come(self):
        """Begins to copy the memory back; the arrays are in their places after :meth:`ensure`."""
        if not self.is_here and self._coming is None and self._slot is not None:
            self._coming = self._copies.back(self._slot)

    def ensure(self):
        """Makes sure that the arrays are in their places, for what is asked of the device from now on."""
        if self.is_over:
            self._read_later.add(self.number)
        if self.is_here:
            return
        held = self._root_among([retained.array_of(node) for node in self.nodes])  # by variables of the user's code
        if held is not None:
            self.settle()
            self._put(held)
            self.is_restored = False
        elif self._slot is None and (self.recipe is None or self.is_over):
            raise RuntimeError(
                f"mixprec.offload: {self.producer} is read after the backward pass in which it was computed again, and "
                f"parameters may have changed: use mixprec.offload(..., recompute=False)"
            )
        elif self._slot is None:
            self._put(self.recipe())
        else:
            self.come()
            (root, mark), self._coming = self._coming, None
            self._copies.wait(mark)
            self._put(root)

    def _put(self, root):
        for place, layout in self._places.values():
            node = place.owner if place.name == "_data" else None
            variable = None if node is None else node.get_variable_or_none()
            array = None if variable is None else variable.raw_array
            if array is None:
                array = self._copies.array_in(root, layout)
            place.put(array)  # that of the variable, as the user may have given it another one
        self.is_here = self.is_restored = True

    def settle(self):
        """Lets the device wait for copies that are under way: what they write to or read from may be given back."""
        self._wait_for_copy_out()
        if self._coming is not None:
            (_, mark), self._coming = self._coming, None
            self._copies.wait(mark)


def compute_again(node, functions, sources, copies):
    """Returns the owner of new memory that holds the array of a variable node, which is not there any more.

    Args:
        node: the variable node.
        functions: function nodes, the one that is to be computed first at the beginning, that of the node at the end.
            They may have been taken out of the graph meanwhile.
        sources: list of :class:`LiveBuffer` that these read.
        copies: of the device.
    """
    for source in sources:
        source.ensure()
    found = {}  # variable node -> array
    for function in functions:
        inputs = tuple([found[x] if x in found else retained.array_of(x) for x in function.inputs])
        with chainer.using_config("enable_backprop", False):
            outputs = retained.again(function).forward(inputs)
        for output, array in zip(function.outputs, outputs, strict=True):
            if output() is not None:
                found[output()] = array
    return copies.root_of(found[node])


def recipe_of(buffer, buffers):
    """Returns how a buffer can be computed again.

    Args:
        buffer: :class:`LiveBuffer`.
        buffers: ``{variable node: LiveBuffer}`` of the round.

    Returns:
        ``(functions, sources)`` as for :func:`compute_again`, or ``None``.
    """
    functions, sources, nodes = [], [], buffer.nodes
    found = nodes and _follow(nodes[0].creator_node, buffers, functions, sources)
    return (functions, list(dict.fromkeys(sources))) if found and sources and buffer not in sources else None


# Not inside of recipe_of: a function that calls itself there is a cycle with what it has found, activations too, until
# Python's collector comes by.
def _follow(function, buffers, functions, sources):
    """Appends to ``functions`` and ``sources`` what gives the outputs of a function; returns whether there is a way."""
    if function is None or len(functions) >= _LONGEST or retained.again(function) is None:
        return False
    for x in function.inputs:
        if x in buffers:
            sources.append(buffers[x])
        elif x.creator_node is None:
            # What is not retained may change before it is read.
            if x.data is None and not isinstance(x.get_variable_or_none(), chainer.Parameter):
                return False
        elif x.creator_node not in functions and not _follow(x.creator_node, buffers, functions, sources):
            return False
    functions.append(function)
    return len(functions) <= _LONGEST

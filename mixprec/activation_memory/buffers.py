"""The memory of retained arrays during a round: on the device, in another memory, or in transfer.

A :class:`LiveBuffer` is one block of memory with all references of the graph to arrays in it. Whatever the plan,
:meth:`LiveBuffer.ensure` brings its arrays back before a function reads them.
"""

import weakref

import chainer

from mixprec.activation_memory import retained

_LONGEST = 3  # functions that are recomputed for one buffer, at most


class LiveBuffer:
    """One block of device memory, with arrays that function nodes have retained.

    Args:
        number: index of the buffer, in the order in which the round made them.
        copies: :class:`~mixprec.backends.copy_interface.Copies` of the device.
        root: owner of the memory, see ``Copies.root_of``; no reference is kept.
        made: number of the event in which it was found.
        producer: label of the function that made it, for messages.
        read_later: set of the numbers of buffers that were read after they had left permanently; this one may be added.

    Attributes:
        size: bytes.
        held: number of the event after which its memory was free on the device, or ``None``.
        needs: numbers of the events of the backward pass that have read it.
        is_here: whether the references point to its arrays.
        is_restored: whether its arrays are in memory that was filled by a copy back, or by a recomputation.
        is_convolution_input: whether a convolution retains it as its input.
        is_over: whether it has left permanently, as far as its round knows.
        recipe: function that recomputes it instead of a copy, see :func:`compute_again`; or ``None``.
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
        self._references = {}  # key -> (reference, layout)
        self._slot = None
        self._leaving = None  # mark of the copy to the slot that the device has not waited for
        self._coming = None  # (root, mark) of the copy from there

    @property
    def has_copy(self):
        """Whether the other memory has a copy, or will have after a running transfer."""
        return self._slot is not None

    @property
    def nodes(self):
        """List of the variable nodes whose arrays lie in it."""
        owners = [reference.owner for reference, _ in self._references.values() if reference.name == "_data"]
        return [owner for owner in owners if owner is not None]

    @property
    def is_live(self):
        """Whether a live graph refers to it."""
        return any(reference.owner is not None for reference, _ in self._references.values())

    def add(self, reference, array):
        """Adds a reference to an array in this memory."""
        self._references[reference.key] = reference, self._copies.layout_of(array)
        if not self.is_here:  # a function has retained it again, from a variable of the user's code
            reference.put(None)

    def copy_out(self):
        """Starts to copy the memory, once; it stays on the device."""
        if self._slot is not None or not self.is_here:
            return
        root = self._root_among([reference.get() for reference, _ in self._references.values()])
        if root is not None:
            self._slot = self._copies.take(self.size)
            weakref.finalize(self, self._copies.give, self._slot).atexit = False
            self._leaving = self._copies.out(root, self._slot)

    def _root_among(self, arrays):
        """Returns the owner of the memory if one of ``arrays`` lies in it, or ``None``."""
        token = self._token()
        for array in arrays:
            root = None if array is None else self._copies.root_of(array)
            if root is not None and token is not None and self._copies.token_of(root) is token:
                return root
        return None

    def leave(self):
        """Clears the references after the copy is done; they stay if the arrays could not be restored."""
        if self._slot is None and self.recipe is None and not self.is_over:
            return
        self._wait_for_copy_out()
        for reference, _ in self._references.values():
            reference.put(None)
        self.is_here = self.is_restored = False

    def _wait_for_copy_out(self):
        if self._leaving is not None:
            self._copies.wait(self._leaving)
            self._leaving = None

    def come(self):
        """Starts to copy the memory back; :meth:`ensure` then restores the references."""
        if not self.is_here and self._coming is None and self._slot is not None:
            self._coming = self._copies.back(self._slot)

    def ensure(self):
        """Makes sure that the references point to the arrays, for all later work of the device."""
        if self.is_over:
            self._read_later.add(self.number)
        if self.is_here:
            return
        held = self._root_among([retained.array_of(node) for node in self.nodes])  # variables of the user's code
        if held is not None:
            self.settle()
            self._put(held)
            self.is_restored = False
        elif self._slot is None and (self.recipe is None or self.is_over):
            raise RuntimeError(
                f"mixprec.offload: {self.producer} is read after the backward pass in which it was recomputed, and "
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
        for reference, layout in self._references.values():
            node = reference.owner if reference.name == "_data" else None
            variable = None if node is None else node.get_variable_or_none()
            array = None if variable is None else variable.raw_array
            if array is None:
                array = self._copies.array_in(root, layout)
            reference.put(array)  # the variable's array, as the user may have replaced it
        self.is_here = self.is_restored = True

    def settle(self):
        """Makes the device wait for running copies, as their source or target memory may be freed."""
        self._wait_for_copy_out()
        if self._coming is not None:
            (_, mark), self._coming = self._coming, None
            self._copies.wait(mark)


def compute_again(node, functions, sources, copies):
    """Recomputes the array of a variable node, which is gone; returns the owner of its new memory.

    Args:
        node: the variable node.
        functions: function nodes in the order of their computation; the last one computes the node. They may have been
            removed from the graph in the meantime.
        sources: list of :class:`LiveBuffer` that these functions read.
        copies: :class:`~mixprec.backends.copy_interface.Copies` of the device.
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
    """Returns how a buffer can be recomputed.

    Args:
        buffer: :class:`LiveBuffer`.
        buffers: ``{variable node: LiveBuffer}`` of the round.

    Returns:
        ``(functions, sources)`` as for :func:`compute_again`, or ``None``.
    """
    functions, sources, nodes = [], [], buffer.nodes
    found = nodes and _follow(nodes[0].creator_node, buffers, functions, sources)
    return (functions, list(dict.fromkeys(sources))) if found and sources and buffer not in sources else None


# Not inside of recipe_of: a nested function that calls itself is a reference cycle, which would hold its results, also
# activations, until Python's collector runs.
def _follow(function, buffers, functions, sources):
    """Appends to ``functions`` and ``sources`` what recomputes the outputs of a function; returns whether it can."""
    if function is None or len(functions) >= _LONGEST or retained.again(function) is None:
        return False
    for x in function.inputs:
        if x in buffers:
            sources.append(buffers[x])
        elif x.creator_node is None:
            # An array that is not retained may change before it is read.
            if x.data is None and not isinstance(x.get_variable_or_none(), chainer.Parameter):
                return False
        elif x.creator_node not in functions and not _follow(x.creator_node, buffers, functions, sources):
            return False
    functions.append(function)
    return len(functions) <= _LONGEST

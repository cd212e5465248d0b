"""The edge of a part of a graph: a backward pass of the part ends at some variables, and their gradients are taken.

While a pass is under way, an :class:`Edge` stands in the place of the function that has computed such a variable; it
may have been computed by none, as parameters are. Nothing is then left in parameters, and gradients are added to those
that are there already as if the pass had gone on.
"""

import contextlib
import threading
import weakref

import chainer


class _Now(threading.local):
    """Attribute ``shut``: list of lists of ``(variable node, Edge)``, of the passes under way in this thread."""

    def __init__(self):
        self.shut = []


_now = _Now()
_lock = threading.RLock()  # a pass of another thread over the same parameters would end at the edges of this one
_origin = chainer.Variable().node  # an edge has an input, as Chainer passes by functions without any


class Edge(chainer.FunctionNode):
    """Takes the gradient of one variable.

    Args:
        node: variable node.

    Attributes:
        stands_for: the function in whose place it stands, or ``None``.
        gradient: variable, or ``None``.
    """

    def __init__(self, node):
        self.takes_two_terms = getattr(node.creator_node, "takes_two_terms", False)
        self.rank = node.rank - 1  # comes after all functions that take the variable
        self.inputs = (_origin,)
        self.outputs = (weakref.ref(node),)
        self.gradient = None
        self.stands_for = node.creator_node

    def backward(self, indexes, grad_outputs):
        (self.gradient,) = grad_outputs
        return (None,)


def _set(edges, *, shut):
    """Puts edges in the place of the functions that have computed their variables, or these back."""
    for edge in edges:
        node = edge.outputs[0]()
        if node is not None:
            node._creator_node = edge if shut else edge.stands_for  # Chainer's property would set its rank, too


@contextlib.contextmanager
def shut(nodes):
    """Inside of the block backward passes end at these variable nodes; gives a list of :class:`Edge`.

    Only one thread is in such a block.
    """
    with _lock:
        edges = [Edge(node) for node in nodes]
        _now.shut.append(edges)
        try:
            _set(edges, shut=True)
            yield edges
        finally:
            _now.shut.pop()
            _set(edges, shut=False)


@contextlib.contextmanager
def open_again():
    """Inside of the block graphs are what they are outside of all blocks of :func:`shut`."""
    outer, _now.shut = _now.shut, []
    for edges in reversed(outer):
        _set(edges, shut=False)
    try:
        yield
    finally:
        _now.shut = outer
        for edges in outer:
            _set(edges, shut=True)

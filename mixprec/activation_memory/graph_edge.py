"""The edge of a part of a graph: a backward pass ends at some variables, whose gradients are collected.

During a pass, an :class:`Edge` replaces the creator of each such variable; a variable without a creator, such as a
parameter, gets one. So nothing is written into parameters, and gradients are later added to existing ones as if the
pass had continued.
"""

import contextlib
import threading
import weakref

import chainer


class _Now(threading.local):
    """Attribute ``shut``: list of lists of ``(variable node, Edge)`` for the current passes of this thread."""

    def __init__(self):
        self.shut = []


_now = _Now()
_lock = threading.RLock()  # a pass of another thread over the same parameters would end at these edges
_origin = chainer.Variable().node  # the input of edges, as Chainer skips functions without inputs


class Edge(chainer.FunctionNode):
    """Collects the gradient of one variable.

    Args:
        node: variable node.

    Attributes:
        stands_for: the function that it replaces, or ``None``.
        gradient: variable, or ``None``.
    """

    def __init__(self, node):
        self.takes_two_terms = getattr(node.creator_node, "takes_two_terms", False)
        self.rank = node.rank - 1  # runs after all functions that take the variable
        self.inputs = (_origin,)
        self.outputs = (weakref.ref(node),)
        self.gradient = None
        self.stands_for = node.creator_node

    def backward(self, indexes, grad_outputs):
        (self.gradient,) = grad_outputs
        return (None,)


def _set(edges, *, shut):
    """Replaces the creators of variables by edges, or restores them."""
    for edge in edges:
        node = edge.outputs[0]()
        if node is not None:
            node._creator_node = edge if shut else edge.stands_for  # Chainer's property would also set the rank


@contextlib.contextmanager
def shut(nodes):
    """A context in which backward passes end at these variable nodes; yields a list of :class:`Edge`.

    Only one thread at a time can be inside.
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
    """A context inside of :func:`shut` in which graphs are unmodified again."""
    outer, _now.shut = _now.shut, []
    for edges in reversed(outer):
        _set(edges, shut=False)
    try:
        yield
    finally:
        _now.shut = outer
        for edges in outer:
            _set(edges, shut=True)

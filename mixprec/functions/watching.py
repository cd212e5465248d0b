"""Callbacks for each function that becomes a part of a graph: :func:`watch` registers one.

:meth:`Node.apply <mixprec.functions.node.Node.apply>` reports its nodes, a patch reports nodes that Chainer applies,
and :func:`mixprec.functions.node.chainer_apply` reports Chainer's nodes in converted models.
"""

import threading
import weakref

from mixprec.base.scoped import scoped
from mixprec.compat.registry import patch_around

_REPORTED = "_reported"  # attribute of a function node: a reference to itself, as a copy of it is another node


class _Now(threading.local):
    """State of this thread.

    Attributes:
        watchers: tuple of the callbacks of :func:`watch`, the outermost first.
    """

    watchers = ()


now = _Now()


def watch(made):
    """Inside the block a callback runs whenever this thread has put a function node into a graph.

    Blocks may be nested, and then several callbacks run. Without backpropagation there is no graph.

    Args:
        made: callback ``made(node, results)``; the results are a tuple of variables. An exception in it ends the
            user's call.
    """
    _reporting.apply()
    return scoped(now, watchers=(*now.watchers, made))


def watch_alone(made=None):
    """Inside the block only ``made`` is called back, or nothing; callbacks from outside the block pause."""
    if made is not None:
        _reporting.apply()
    return scoped(now, watchers=() if made is None else (made,))


def report(node, results):
    """Calls back for a function node that has become a part of a graph, once for each node.

    Args:
        node: function node.
        results: tuple of its output variables.
    """
    reported = vars(node).get(_REPORTED)
    if reported is None or reported() is not node:
        vars(node)[_REPORTED] = weakref.ref(node)
        for made in now.watchers:
            made(node, results)


@patch_around("chainer.function_node:FunctionNode.apply", when="mixprec.recompute, mixprec.offload")
def _reporting(original, self, inputs):
    """Without it Chainer's own functions go into a graph unseen, and what they retain stays on the device."""
    results = original(self, inputs)
    if now.watchers and self.inputs is not None:  # another node may have replaced it
        report(self, results)
    return results

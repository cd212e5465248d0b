"""Who wants to know of each function that becomes a part of a graph: :func:`watch` calls back after each.

:meth:`Node.apply <mixprec.functions.node.Node.apply>` reports its nodes, a patch those that Chainer applies, and
:func:`mixprec.functions.node.chainer_apply` those of Chainer's in converted models.
"""

import threading
import weakref

from mixprec.base.scoped import scoped
from mixprec.compat.registry import patch_around

_REPORTED = "_reported"  # attribute of a function node: a reference to itself, as a copy of it is another node


class _Now(threading.local):
    """Of this thread.

    Attributes:
        watchers: tuple of what :func:`watch` was given, the outermost first.
    """

    watchers = ()


now = _Now()


def watch(made):
    """Inside of the block a function is called back whenever this thread has put a function node into a graph.

    Several may be called back, and blocks may lie in one another. Without backpropagation there is no graph.

    Args:
        made: ``made(node, results)``; the results are a tuple of variables. It may raise: the user's call then does.
    """
    _reporting.apply()
    return scoped(now, watchers=(*now.watchers, made))


def watch_alone(made=None):
    """Inside of the block only ``made`` is called back, or nothing, and not what is watching outside of the block."""
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
    if now.watchers and self.inputs is not None:  # another node may have taken its place
        report(self, results)
    return results

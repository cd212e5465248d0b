"""Which gradients of parameters nobody adds to in a backward pass."""

import chainer

from mixprec.master_arrays import OWNER


def sole_uses(outputs):
    """Returns the inputs of functions that are parameters without a gradient, and inputs of no other function.

    Args:
        outputs: of a backward pass, ``[(variable node, gradient)]``.

    Returns:
        Set of pairs of a function node and the place of the input; empty in Chainer's debug mode, which looks at every
        gradient at once.
    """
    if chainer.is_debug():
        return set()
    functions_left = [node.creator_node for node, _ in outputs if node.creator_node is not None]
    seen, places = set(functions_left), {node: [None] for node, _ in outputs}  # an output has a gradient already
    while functions_left:
        function = functions_left.pop()
        for place, x in enumerate(function.inputs):
            places.setdefault(x, []).append((function, place))
            if x.creator_node is not None and x.creator_node not in seen:
                seen.add(x.creator_node)
                functions_left.append(x.creator_node)
    found = set()
    for x, users in places.items():
        param = x.get_variable_or_none() if x.creator_node is None else None
        if len(users) == 1 and users[0] is not None and hasattr(param, OWNER) and param.grad is None:
            found.add(users[0])
    return found

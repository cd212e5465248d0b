"""What a backward pass will come by; looked at once before each, so it does with as little Python as it can."""


def reached(outputs):
    """Returns the functions and the leaves of a backward pass.

    Args:
        outputs: the variable nodes that it begins from.

    Returns:
        ``(functions, leaves)``: a list of function nodes, and a list of the variable nodes that have no creator and
        want a gradient. Outputs want one in any case.
    """
    functions, leaves, nodes = [], [], list(outputs)
    seen = set(nodes)
    for node in nodes:  # which grows
        function = node._creator_node  # not by the property, which takes longer than all the rest
        if function is None:
            leaves.append(node)
        elif function not in seen:
            seen.add(function)
            functions.append(function)
            for x in function.inputs:
                if x._requires_grad and x not in seen:
                    seen.add(x)
                    nodes.append(x)
    return functions, leaves

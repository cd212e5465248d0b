"""The function nodes of Chainer's graphs."""


def nodes_behind(*ys):
    """Returns the list of the nodes that variables come from, each once."""
    found, todo = {}, [y.creator_node for y in ys]
    while todo:
        node = todo.pop()
        if node is not None and id(node) not in found:
            found[id(node)] = node
            todo += [x.creator_node for x in node.inputs]
    return list(found.values())

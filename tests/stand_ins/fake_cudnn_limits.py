"""What cuDNN has no engine for, as found by building plans for H200; for :mod:`tests.stand_ins.fake_cudnn`.

9.28 and 9.19 refuse the same of what is asked, see ``tests/backends/cudnn/test_plans.py``; their first engines differ.
"""


class cudnnGraphNotSupportedError(RuntimeError):
    """Of the same name as the frontend's."""


def refuse(graph):
    """Raises :class:`cudnnGraphNotSupportedError` where the frontend's ``create_execution_plans`` would.

    Args:
        graph: validated ``fake_cudnn.pygraph``.
    """
    kinds = [node.kind for node in graph.nodes]
    storage = graph.io_data_type.name
    for rule, refused in _RULES.items():
        if refused(graph.nodes, kinds, storage):
            raise cudnnGraphNotSupportedError(f"no engine for {' -> '.join(kinds)} in {storage}: {rule}")


def _channels(nodes, kinds, storage):
    return any(
        node.inputs["input"].dim[1] % (4 if storage == "FLOAT" else 8)
        for node in nodes
        if node.kind in ("batchnorm", "batchnorm_backward")
    )


def _addition_alone(nodes, kinds, storage):
    return "batchnorm" in kinds and "add" in kinds and "relu" not in kinds


def _wide_operand(nodes, kinds, storage):
    """An intermediate float32 value as the gradient of batchnorm_backward."""
    gradients = [node.inputs["grad"] for node in nodes if node.kind == "batchnorm_backward"]
    return storage != "FLOAT" and any(grad.is_virtual and grad.data_type.name == "FLOAT" for grad in gradients)


def _statistics(nodes, kinds, storage):
    if "genstats" not in kinds:
        return False
    convolution = nodes[kinds.index("conv_fprop")]
    weight = convolution.inputs["weight"].dim
    channels = convolution.inputs["image"].dim[1]
    is_grouped, taps = channels != weight[1], weight[2] * weight[3]
    return storage != "HALF" or is_grouped or taps > 25 or any(c % 8 for c in (channels, weight[0]))


_RULES = {
    "batch normalization wants a multiple of 8 channels, of 4 in float32": _channels,
    "an addition after batch normalization wants a ReLU after it": _addition_alone,
    "an operand between two nodes is not in the storage dtype": _wide_operand,
    "statistics want float16 throughout, one group, multiples of 8 channels, and filters up to 5x5": _statistics,
}

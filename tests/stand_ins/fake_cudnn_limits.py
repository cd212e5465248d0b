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


def needs_tensor_cores(graph):
    """Whether cuDNN has no engine without them: for a convolution of what another node gives."""
    return any(node.kind == "conv_fprop" and node.inputs["image"].is_virtual for node in graph.nodes)


def _channels(nodes, kinds, storage):
    return any(
        node.inputs["input"].dim[1] % (4 if storage == "FLOAT" else 8)
        for node in nodes
        if node.kind in ("batchnorm", "batchnorm_backward")
    )


def _addition_alone(nodes, kinds, storage):
    return "batchnorm" in kinds and "add" in kinds and "relu" not in kinds


def _wide_operand(nodes, kinds, storage):
    """An intermediate float32 value as an operand of a convolution or of batchnorm_backward."""
    return storage != "FLOAT" and any(
        tensor.is_virtual and tensor.data_type.name == "FLOAT"
        for node in nodes
        for name, tensor in node.inputs.items()
        if (node.kind, name) in (("conv_fprop", "image"), ("conv_wgrad", "image"), ("batchnorm_backward", "grad"))
    )


def _statistics(nodes, kinds, storage):
    if "genstats" not in kinds:
        return False
    convolution = nodes[kinds.index("conv_fprop")]
    weight = convolution.inputs["weight"].dim
    channels = (convolution.inputs["image"].dim[1], weight[0])
    return storage != "HALF" or max(weight[2:]) > 5 or any(c % 8 for c in channels) or _wide_scale(nodes)


def _prologue_of_wgrad(nodes, kinds, storage):
    return "conv_wgrad" in kinds and "scale" in kinds and (storage != "HALF" or _wide_scale(nodes))


def _wide_scale(nodes):
    return any(node.inputs["scale"].data_type.name == "FLOAT" for node in nodes if node.kind == "scale")


_RULES = {
    "batch normalization wants a multiple of 8 channels, of 4 in float32": _channels,
    "an addition after batch normalization wants a ReLU after it": _addition_alone,
    "an operand between two nodes is not in the storage dtype": _wide_operand,
    "statistics want float16 throughout, multiples of 8 channels, and filters up to 5x5": _statistics,
    "scale and bias before conv_wgrad want float16": _prologue_of_wgrad,
}

"""How operations are described to cuDNN; what they compute, the tests of primitives compare by the stand-in."""

from mixprec.backends.cudnn.operation_graphs import data_type, describe
from mixprec.backends.geometry import Convolution
from tests.backends.cudnn import operations
from tests.stand_ins import fake_cudnn

X = (3, 4, 5, 16)


def graph_of(operation):
    graph = fake_cudnn.pygraph(
        io_data_type=data_type(fake_cudnn, operation.inputs[0].dtype),
        intermediate_data_type=fake_cudnn.data_type.FLOAT,
        compute_data_type=fake_cudnn.data_type.FLOAT,
        sm_version=90,
    )
    describe(fake_cudnn, graph, operation)
    return graph


def test_tensors_are_numbered_in_the_order_of_the_operation():
    operation = operations.batch_norm(X, "float16", relu=True, add=True)
    graph = graph_of(operation)
    graph.validate()
    uids = {tensor.uid: tensor.dim for tensor in graph.operands}
    assert sorted(uids) == list(range(1, len(operation.tensors) + 1))
    assert uids[1] == [3, 16, 4, 5]
    assert uids[2] == [1, 16, 1, 1]


def test_strides_say_that_channels_lie_innermost():
    graph = graph_of(operations.conv_dgrad((2, 9, 8, 6), (4, 3, 2, 6), Convolution((3, 2), (2, 1), (2, 3)), "float16"))
    dy, w, dx = graph.operands
    assert (w.dim, w.stride) == ([4, 6, 3, 2], [36, 1, 12, 6])
    assert (dx.dim, dx.stride) == ([2, 6, 9, 8], [432, 1, 48, 6])
    assert dy.dim[:2] == [2, 4]

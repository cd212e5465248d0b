"""Lower triangles of matrices beside NumPy's indices of them; in a CUDA graph, which may upload nothing."""

import numpy as np
import pytest

from mixprec.kfac import triangles
from tests.cases import in_turn
from tests.stand_ins import graph_array
from tests.stand_ins.capture_sides import device, host  # noqa: F401  (fixtures)


def _matrices(groups, size):
    """Nothing in them is symmetric; above the diagonals they are NaN."""
    values = np.random.RandomState(size).normal(size=(groups, size, size)).astype(np.float32)
    rows, columns = np.triu_indices(size, 1)
    values[:, rows, columns] = np.nan
    return values


def _symmetric(matrices):
    lower = np.tril(matrices)
    return lower + np.tril(matrices, -1).transpose(0, 2, 1)


@pytest.mark.parametrize(("size", "groups"), in_turn([1, 2, 5, 8, 65], [1, 3]))
def test_matrices_come_back_symmetric(groups, size):
    matrices = _matrices(groups, size)
    rows, columns = np.tril_indices(size)
    matrices[0, rows[-1], columns[0]] = -0.0  # bits stay, too
    packed = triangles.packed(matrices)
    assert packed.size == triangles.size_of(matrices) == groups * len(rows)
    for one, matrix in zip(packed, matrices, strict=True):
        np.testing.assert_array_equal(np.sort(one, axis=None), np.sort(matrix[rows, columns]))
    found = np.full_like(matrices, np.inf)
    triangles.unpack(packed.reshape(-1), found)
    assert found[:, rows, columns].tobytes() == matrices[:, rows, columns].tobytes()
    np.testing.assert_array_equal(found, found.transpose(0, 2, 1))


@pytest.mark.parametrize("size", [1, 7])
def test_in_a_graph(host, size):  # noqa: F811
    with host.graphs.on_stream():
        source, target = map(graph_array.array, (_matrices(2, size), np.zeros((2, size, size), np.float32)))
        graph, _ = host.graphs.capture(lambda: triangles.unpack(triangles.packed(source), target))
        for _ in range(2):
            source[...] = source + 1
            graph.launch()
            np.testing.assert_array_equal(
                graph_array.receive(target), np.nan_to_num(_symmetric(np.nan_to_num(graph_array.receive(source))))
            )

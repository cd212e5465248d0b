"""Recurrent layers in a CUDA graph: on the host's stand-ins, and on a GPU."""

import numpy as np
import pytest

from mixprec.backends.recurrence import Recurrence
from tests.backends.primitive_cases import FLOAT16, arrays
from tests.stand_ins.cuda_sides import both_sides


@both_sides
@pytest.mark.parametrize("kind", ["lstm", "gru", "gru_reset_before"])
def test_a_graph_of_a_layer_repeats_its_bits(side, kind):
    """With other sequences in the same place; each launch has the numbers of its own step."""
    rng = np.random.default_rng(0)
    layer = Recurrence(kind, 4, (3, 3, 1), reverse=True)
    xs = [tuple(arrays(rng, (length, 5), FLOAT16) for length in (2, 3, 0, 2)) for _ in range(2)]
    shapes = (layer.gates * 17, 5), (layer.gates * 17, 17), (4, 17)
    w, u, h = side.send(tuple(arrays(rng, shape, FLOAT16, 0.3) for shape in shapes))
    given, cuda, order = side.send(xs[0]), side.fresh(), (1, 0, 3, 2)

    def step():
        x = cuda.pack_sequences(given, order)
        y, last, _, saved = cuda.recurrent(x, w, u, (None, None), h, None, layer)
        dx, dp, _, dh, _ = cuda.recurrent_backward(y, last, None, w, u, y, saved, layer)
        return y, last, cuda.rows_wgrad(x, dp), dh, *cuda.unpack_sequences(dx, (2, 3, 0, 2), order)

    launch, outputs = side.graph_of(cuda, step)
    for values in (*xs, xs[0]):
        for array, value in zip(given, values, strict=True):
            side.write(array, value)
        side.wait()
        launch()
        for found, right in zip(side.receive(outputs), side.receive(step()), strict=True):
            np.testing.assert_array_equal(found, right)

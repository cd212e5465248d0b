"""Models of the zoo in float16, and some in bfloat16, beside plain Chainer in float64.

What may be expected is measured: the plain model once more in float64, with its weights and the result of each
function, forward and backward, rounded to the dtype (``rounding``). A converted model may be twice as
far from the truth in its results, and four times in its gradients, of which there is more to say: rounding moves some
thousandths of the inputs of a ReLU across 0, and some maxima to another pixel, each with all of its gradient. Both runs
do so with the same ones until fusion leaves out a rounding; then they part, by up to 1/16 in models of this size.
Gradients of all parameters and inputs are taken together: alone, a small one may be the sum of large ones that cancel.
"""

import ml_dtypes
import numpy as np
import pytest

from tests.cases import first
from tests.zoo import pairs
from tests.zoo.cases import variables_in

HALF = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
EPS = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # half a unit in the last place, relative
SCALE = 2.0**7
IN_BFLOAT16 = [
    *("resnet_example", "densenet", "senet_times_broadcast", "unet", "googlenet_style", "lstm_classifier"),
    *("shufflenet", "user_functions_in_the_old_style", "sum_in_place", "several_outputs"),
]


def _of_results(found, exact):
    """The largest error of a result, a loss, or what the model keeps."""
    return max(
        error for key, error in pairs.distances(found, exact).items() if not key.startswith(("gradient", "input"))
    )


def _of_gradients(found, exact):
    """The error of all gradients, taken together."""
    names = [name for name in exact if name.startswith(("gradient", "input"))]
    difference = sum(np.sum((found[name] - exact[name]) ** 2) for name in names)
    return float(np.sqrt(difference / sum(np.sum(exact[name] ** 2) for name in names)))


def _check(case, compute):
    expected = pairs.reference(case)
    model, rounded = pairs.converted(case, compute=compute), pairs.new(case, np.float64)
    for param in rounded.params():
        param.array = param.array.astype(HALF[compute]).astype(np.float64)
    for number, (train, seed, exact) in enumerate(zip(expected.plan, expected.seeds, expected.expected, strict=True)):
        with pairs.rounding(HALF[compute]):
            likely = pairs.run_plain(rounded, case, seed, train=train, loss_scale=SCALE, dtype=np.float64)
        found = pairs.run(model, case, seed, train=train, loss_scale=SCALE)
        limit = max(8 * EPS[compute], 2 * _of_results(likely, exact))
        assert _of_results(found, exact) <= limit, number
        assert _of_gradients(found, exact) <= 4 * _of_gradients(likely, exact) + 1 / 16, number
    for key, error in pairs.distances(pairs.statistics(model), expected.statistics).items():
        assert error <= 8 * EPS[compute], key


@pytest.mark.parametrize("name", first(12, pairs.SMALL))
def test_float16(name):
    _check(pairs.SMALL[name], "float16")
    # Results are float32, and images lie in the order of their axes.
    _, result, loss = pairs.forward(pairs.converted(pairs.SMALL[name]), pairs.SMALL[name], 1)
    for variable in [*variables_in(result), loss]:
        assert variable.dtype == np.float32
        assert variable.ndim != 4 or variable.array.flags.c_contiguous


@pytest.mark.parametrize("name", first(1, IN_BFLOAT16))
def test_bfloat16(name):
    _check(pairs.SMALL[name], "bfloat16")


@pytest.mark.slow
@pytest.mark.parametrize("case", pairs.LARGE_CASES)
def test_float16_of_large_models(case):
    """One call, fused. Their ReLUs are open or closed for good, so that errors are those of rounding alone, which grow
    with depth: at most 8 half units in results, 64 in gradients taken together."""
    expected = pairs.reference(case)
    found = pairs.run(pairs.converted(case), case, expected.seeds[0], train=expected.plan[0])
    assert _of_results(found, expected.expected[0]) <= 8 * EPS["float16"]
    assert _of_gradients(found, expected.expected[0]) <= 64 * EPS["float16"]

"""Every model of the zoo, converted, beside the plain one: float32, initial values, names, and what is fused.

The measure of errors, here and in the files beside this one: of each array the Euclidean norm of the difference over
that of what is expected (:func:`tests.zoo.pairs.distances`), and what is expected is plain Chainer in float64.
"""

import numpy as np
import pytest
from chainer import serializers

import mixprec
from tests.cases import first, in_turn
from tests.zoo import pairs

WAYS = {
    "first call": {},
    "example": {"example": True},
    "unfused": {"fuse": False},
    "nchw": {"layout": "nchw", "fuse": False},
}
# Sums over images and pixels have up to 1,024 terms. NumPy adds them in pairs, BLAS of some processors one after the
# other: roundings that are independent then add up to sqrt(1024) times as much.
ANY_ORDER = 32
ONE_ROUNDING = 2**-10  # less than a rounding to float16 anywhere would make


def _check_float32(case, model, plain, run_converted=pairs.run, share=1.0):
    """``share``: how many of the gradients, the most exact ones, have to be within the bound."""
    expected = pairs.reference(case)
    for number, (train, seed, exact) in enumerate(zip(expected.plan, expected.seeds, expected.expected, strict=True)):
        where = f"call {number}, seed {seed}"
        gradients, results = _split(pairs.distances(run_converted(model, case, seed, train=train), exact))
        of_plain, _ = _split(pairs.distances(pairs.run_plain(plain, case, seed, train=train), exact))
        assert max(results.values()) <= 1e-5, (where, results)
        plain_error = np.quantile(list(of_plain.values()), share)
        assert 8 * plain_error < ONE_ROUNDING, "not a fair case: plain float32 is off itself"
        limit = min(ONE_ROUNDING, max(1e-5, ANY_ORDER * plain_error))
        worst = max(gradients, key=gradients.get)
        assert np.quantile(list(gradients.values()), share) <= limit, (where, worst, gradients[worst])
        assert gradients[worst] < 5e-2, (where, worst, gradients[worst])
    assert all(error <= 1e-5 for error in pairs.distances(pairs.statistics(model), expected.statistics).values())
    # And once more without a graph; plain and converted are in the same state, each within 1e-5 of the truth.
    found, expected = (pairs.run(each, case, 1000, train=False, backprop=False) for each in (model, plain))
    assert max(pairs.distances(found, expected).values()) <= 2e-5


def _split(errors):
    gradients = {key: error for key, error in errors.items() if key.startswith(("gradient", "input"))}
    return gradients, {key: error for key, error in errors.items() if key not in gradients}


@pytest.mark.parametrize(("name", "how"), first(14, in_turn(pairs.SMALL, WAYS)))
def test_float32_is_exact_to_1e_5(name, how):
    """Results are, and so are gradients where plain Chainer's own are: their bound is 1e-5, or 32 times the largest
    error of plain float32, which is above 1e-5 where contributions cancel."""
    case, way = pairs.SMALL[name], WAYS[how]
    # In NCHW dropout is Chainer's own.
    run_converted = pairs.run_plain if way.get("layout") == "nchw" else pairs.run
    _check_float32(case, pairs.converted(case, compute="float32", **way), pairs.new(case), run_converted)


@pytest.mark.parametrize("case", pairs.NOT_FUSED.values(), ids=pairs.NOT_FUSED)
def test_models_that_are_right_without_fusion(case):
    _check_float32(case, pairs.converted(case, compute="float32", fuse=False), pairs.new(case))


@pytest.mark.xfail(strict=True, reason="running statistics move with the ReLU, after the model has read them")
@pytest.mark.parametrize("case", pairs.NOT_FUSED.values(), ids=pairs.NOT_FUSED)
def test_models_that_are_wrong_with_fusion(case):
    _check_float32(case, pairs.converted(case, compute="float32"), pairs.new(case))


@pytest.mark.slow
@pytest.mark.parametrize("case", pairs.LARGE_CASES)
def test_float32_of_large_models(case):
    """As above, but for half of the gradients, or a quarter without normalizations. Some ReLU or maximum goes the other
    way among so many, in plain float32 as well; that moves the gradients between it and the images by up to a percent.
    """
    plain = pairs.new(case)
    share = 0.5 if pairs.statistics(plain) else 0.25
    _check_float32(case, pairs.converted(case, compute="float32"), plain, share=share)


@pytest.mark.parametrize("name", first(12, pairs.SMALL))
def test_initial_values_names_and_files_are_those_of_the_plain_model(name, tmp_path):
    """From the random numbers of the same seed, also where a first call initializes."""
    case = pairs.SMALL[name]
    plain, model = (_built(case) for _ in range(2))
    names = [path for path, _ in model.namedparams()]
    mixprec.convert(model, compute="float32")
    with pairs.the_zeros_of_mixprec():
        pairs.forward(plain, case, 2)
    pairs.forward(model, case, 2)
    assert [path for path, _ in model.namedparams()] == [path for path, _ in plain.namedparams()] == names
    expected = dict(plain.namedparams())
    for path, param in model.namedparams():
        np.testing.assert_array_equal(param.array, expected[path].array, err_msg=path, strict=True)
    for number, each in enumerate((plain, model)):
        serializers.save_npz(tmp_path / f"{number}.npz", each)
    with np.load(tmp_path / "0.npz") as first, np.load(tmp_path / "1.npz") as second:
        assert first.files == second.files
        for key in first.files:
            assert (first[key].dtype, first[key].shape) == (second[key].dtype, second[key].shape), key
            # Statistics differ by rounding.
            np.testing.assert_allclose(second[key], first[key], rtol=1e-4, atol=1e-5)


def _built(case):
    np.random.seed(1)
    return case.build()


# With a ReLU, with that and a pooling, with an addition and a ReLU, with that and each other, alone.
FUSED = (
    {"sum_with_plus": (1, 0, 1, 0, 0), "sum_in_place": (1, 0, 1, 0, 0), "shortcut_comes_first": (1, 0, 1, 0, 0)}
    | {"both_have_their_own": (1, 0, 0, 2, 0), "sum_of_three": (0, 0, 0, 0, 3), "sum_after_relu": (1, 0, 0, 0, 0)}
    | {"identity_after_sum": (2, 0, 0, 0, 0), "normalized_twice": (1, 0, 0, 0, 1), "not_a_relu": (0, 0, 0, 0, 3)}
    | {"used_twice": (0, 0, 0, 0, 1), "kept": (0, 0, 0, 0, 1), "one_bn_in_two_ways": (1, 0, 0, 0, 1)}
    | {"forgotten": (1, 0, 1, 0, 0), "several_outputs": (2, 0, 0, 0, 1), "sequential": (2, 0, 0, 0, 0)}
    | {"chain_list": (2, 0, 0, 0, 0), "inception_bn": (23, 0, 0, 0, 0), "resnet_example": (8, 1, 2, 4, 0)}
    | {"densenet": (12, 0, 0, 0, 0), "mobilenet_groups": (0, 0, 0, 0, 10), "unet": (5, 0, 0, 0, 0)}
)


@pytest.mark.parametrize("name", FUSED)
def test_what_is_fused(name):
    model = pairs.new(pairs.SMALL[name])
    report = mixprec.convert(model, pairs.SMALL[name].inputs(np.random.RandomState(0)), compute="float32")
    assert tuple(report.fused.values()) == FUSED[name], report

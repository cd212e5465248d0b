"""Stochastic depth between a batch normalization and the addition of a residual block, in converted models."""

import chainer
import chainer.functions as F
import numpy as np
import pytest

import mixprec
from mixprec.functions import reset_dropout, stochastic_depth
from mixprec.rewrite.fusions import ADD_RELU
from tests.cases import in_turn
from tests.rewrite.twins import assert_same, fusions, new, site, step

BATCH = (12, 3, 6, 6)  # some of the images are dropped, and some are not
RATIO = 0.4


def images(seed):
    return np.random.RandomState(seed).normal(size=BATCH).astype(np.float32)


def seeded(model, x, seed):
    np.random.seed(seed)
    reset_dropout()
    return step(model, x)


def beside(function, calls=4, **how):
    """Both models drop the same images in each call; returns the converted model and its report."""
    plain, converted = new(function), new(function)
    report = mixprec.convert(converted, compute="float32", **how)
    for call in range(calls):
        assert_same(seeded(converted, images(call), call), seeded(plain, images(call), call))
    return converted, report


def branch(m, x):
    return stochastic_depth(m.bn1(m.conv1(x)), RATIO)


def sum_with_plus(m, x):
    x = m.stem(x)
    return m.conv2(F.relu(branch(m, x) + x))


def sum_the_other_way_round(m, x):
    x = m.stem(x)
    return F.relu(x + branch(m, x))


def projection(m, x):
    x = m.stem(x)
    return F.relu(branch(m, x) + m.bn3(m.conv3(x)))


def projection_first(m, x):
    """It is the one with factors that is computed together with the addition."""
    x = m.stem(x)
    return F.relu(m.bn3(m.conv3(x)) + branch(m, x))


def several_blocks(m, x):
    x = F.relu(branch(m, m.stem(x)) + m.stem(x))
    return F.relu(stochastic_depth(m.bn2(m.conv2(x)), 0.6) + x)


FUSED = [sum_with_plus, sum_the_other_way_round, projection, projection_first, several_blocks]


@pytest.mark.parametrize("function", FUSED, ids=lambda function: function.__name__)
def test_it_is_fused(function):
    model, report = beside(function, example=images(0))
    found = fusions(model)
    assert found["/bn1"] == [ADD_RELU]
    if function is several_blocks:
        assert found["/bn2"] == [ADD_RELU]
    assert not report.unconverted
    assert not report.conversions or {each.function for each in report.conversions} <= {
        "Convolution2DFunction",
        "result",
    }


def test_in_evaluation_it_is_the_identity_and_the_block_is_fused_without_it():
    model, _ = beside(sum_with_plus)
    x = images(1)
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        assert_same(seeded(model, x, 0), seeded(model, x, 1))
    assert site(model.bn1, train=False).fused == ADD_RELU


# Without a match


def no_addition(m, x):
    return F.relu(branch(m, m.stem(x)))


def no_relu(m, x):
    x = m.stem(x)
    return m.conv2(branch(m, x) + x)


def of_a_convolution(m, x):
    x = m.stem(x)
    return F.relu(stochastic_depth(m.conv1(x), RATIO) + x)


def with_a_broadcast(m, x):
    x = m.stem(x)
    return F.relu(branch(m, x) + x[:1])


def constant_statistics(m, x):
    x = m.stem(x)
    with chainer.using_config("train", False):
        h = m.bn1(m.conv1(x))
    return F.relu(stochastic_depth(h, RATIO) + x)


def result_of_the_model(m, x):
    return branch(m, m.stem(x))


NOT_FUSED = {
    no_addition: "StochasticDepth follows",
    no_relu: "an addition follows, and then Convolution2DFunction",
    of_a_convolution: None,
    with_a_broadcast: "StochasticDepth follows",
    constant_statistics: None,
    result_of_the_model: "it is kept, or a result of the model",
}


@pytest.mark.parametrize("function", NOT_FUSED, ids=lambda function: function.__name__)
def test_what_is_not_fused_and_why(function):
    model, report = beside(function)
    if NOT_FUSED[function] is not None:
        assert fusions(model)["/bn1"] == [NOT_FUSED[function]]
    assert not report.unconverted


# Those who look at what was left out

LATE = {
    "the normalization": lambda h, d, s: (h,),
    "the branch": lambda h, d, s: (d,),
    "the sum": lambda h, d, s: (s,),
    "all": lambda h, d, s: (h, d, s),
    "from the end": lambda h, d, s: (s, d, h),
}


@pytest.mark.parametrize(("held", "first"), in_turn(LATE, [1, 2, 3]))
def test_gradients_of_what_the_user_keeps(held, first):
    """Each is held from some call on, and looked at when the model is done; results and gradients are plain ones."""

    def function(m, x):
        m.calls = getattr(m, "calls", 0) + 1
        x = m.stem(x)
        h = m.bn1(m.conv1(x))
        d = stochastic_depth(h, RATIO)
        s = d + x
        y = F.relu(s)
        if m.calls >= first:
            m.notes += LATE[held](h, d, s)
        return m.conv2(y)

    plain, converted = new(function), new(function)
    mixprec.convert(converted, compute="float32")
    for call in range(4):
        both = []
        for model in (converted, plain):
            np.random.seed(call)
            reset_dropout()
            del model.notes[:]
            model.cleargrads()
            F.sum(model(images(call)) ** 2).backward(retain_grad=True)
            arrays = {f"array {n}": each.array for n, each in enumerate(model.notes)}
            gradients = {f"gradient {n}": each.grad for n, each in enumerate(model.notes)}
            both.append(arrays | gradients | {"W": model.conv1.W.grad, "gamma": model.bn1.gamma.grad})
        assert all(grad is not None for grad in both[1].values())
        assert_same(*both)


@pytest.mark.parametrize(
    ("time", "what"), in_turn(["before the sum", "before the ReLU", "after the ReLU", "at the end"], "hds")
)
def test_who_looks_inside_of_the_call_sees_right_values(what, time):
    def function(m, x):
        x = m.stem(x)
        things = {"h": m.bn1(m.conv1(x))}
        things["d"] = stochastic_depth(things["h"], RATIO)
        seen = []

        def look(now):
            if now == time and what in things:
                seen.append(F.sum(F.tanh(things[what])))

        look("before the sum")
        things["s"] = things["d"] + x
        look("before the ReLU")
        y = F.relu(things["s"])
        look("after the ReLU")
        z = m.conv2(y)
        look("at the end")
        return z, sum(seen, F.sum(x) * 0.01)

    beside(function, calls=3)


@pytest.mark.parametrize(("compute", "layout"), [("float16", "nhwc"), ("bfloat16", "nhwc"), ("float16", "nchw")])
def test_in_every_dtype_and_layout(compute, layout):
    """Rounding apart, results are those of the plain model in float32."""
    plain, converted = new(sum_with_plus), new(sum_with_plus)
    mixprec.convert(converted, compute=compute, layout=layout)
    for call in range(2):
        found, expected = seeded(converted, images(call), call), seeded(plain, images(call), call)
        assert_same(found, expected, rtol={"float16": 0.02, "bfloat16": 0.15}[compute])


def test_steps_of_a_recomputed_block_are_those_of_one_that_is_kept():
    def kept(m, x):
        return sum_with_plus(m, x)

    def recomputed(m, x):
        x = m.stem(x)
        return mixprec.recompute(lambda h: m.conv2(F.relu(branch(m, h) + h)))(x)

    models = [new(function) for function in (kept, recomputed)]
    for model in models:
        mixprec.convert(model, compute="float16")
    for call in range(3):
        found = [seeded(model, images(call), call) for model in models]
        for name, array in found[0].items():
            np.testing.assert_array_equal(found[1][name], array, err_msg=name)

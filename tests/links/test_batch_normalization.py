"""The link of batch normalization beside Chainer's."""

import chainer
import chainer.functions as CF
import chainer.links as CL
import numpy as np
import pytest

from mixprec import links as L
from tests.functions.nhwc import DTYPES, normal, run, to_nchw

SHAPE = 3, 5, 4, 6


def _batches(count):
    return [normal(seed, *SHAPE) * 2 + seed for seed in range(count)]


def _statistics(link):
    return np.stack([link.avg_mean, link.avg_var])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lazy", [False, True])
def test_three_modes_are_chainers(dtype, lazy):
    link = L.BatchNormalization(None if lazy else 6, decay=0.8, eps=1e-3)
    other = CL.BatchNormalization(6, decay=0.8, eps=1e-3)
    tolerance = {"rtol": 1e-2, "atol": 2e-2} if dtype != np.float32 else {"rtol": 1e-4, "atol": 1e-5}
    for finetune in (False, True):
        for x in _batches(4):
            x = x.astype(dtype)
            y, exact = link(x, finetune=finetune), other(to_nchw(x.astype(np.float32)), finetune=finetune)
            np.testing.assert_allclose(to_nchw(y.array.astype(np.float32)), exact.array, **tolerance)
        np.testing.assert_allclose(_statistics(link), _statistics(other), rtol=1e-5, atol=1e-6)
        assert link.N == other.N == (4 if finetune else 0)
        with chainer.using_config("train", False):
            y, exact = link(x), other(to_nchw(x.astype(np.float32)))
        np.testing.assert_allclose(to_nchw(y.array.astype(np.float32)), exact.array, **tolerance)
    link.start_finetuning()
    assert link.N == 0


@pytest.mark.parametrize("train", [False, True])
def test_add_and_relu_with_their_gradients(train):
    def of(link, relu):
        return lambda x, add: relu(link, x, add)

    arrays = [normal(0, *SHAPE) * 2, normal(1, *SHAPE)]
    with chainer.using_config("train", train):
        y, gradients, dy = run(of(L.BatchNormalization(6), lambda link, x, add: link(x, add=add, relu=True)), arrays)
        exact, gradients_exact, _ = run(
            of(CL.BatchNormalization(6), lambda link, x, add: CF.relu(link(x) + add)), map(to_nchw, arrays), to_nchw(dy)
        )
    for found, right in zip([y, *gradients], [exact, *gradients_exact], strict=True):
        np.testing.assert_allclose(to_nchw(found), right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("use_gamma", [False, True])
@pytest.mark.parametrize("use_beta", [False, True])
def test_without_parameters(use_gamma, use_beta):
    x = normal(0, *SHAPE, dtype=np.float16)
    arguments = {"use_gamma": use_gamma, "use_beta": use_beta, "initial_gamma": 2, "initial_beta": 3}
    link, other = (links.BatchNormalization(6, **arguments) for links in (L, CL))
    assert sorted(name for name, _ in link.namedparams()) == sorted(name for name, _ in other.namedparams())
    np.testing.assert_allclose(to_nchw(link(x).array), other(to_nchw(x.astype("f"))).array, atol=1e-2)
    assert f"use_gamma={use_gamma}, use_beta={use_beta}" in str(link)
    assert "size=6" in str(link)
    assert "size=None" in str(L.BatchNormalization())


def test_forget_counts_a_batch_once():
    links = [L.BatchNormalization(6) for _ in range(2)]
    x = normal(0, *SHAPE)
    for finetune in (False, True):
        _, gradients, dy = run(lambda x, finetune=finetune: links[0](x, finetune=finetune), [x])
        _, forgotten, _ = run(
            lambda x, finetune=finetune: CF.forget(lambda x: links[1](x, finetune=finetune), x), [x], dy
        )
        np.testing.assert_array_equal(forgotten, gradients)
        np.testing.assert_array_equal(_statistics(links[1]), _statistics(links[0]))
        assert links[0].N == links[1].N == finetune
    np.testing.assert_array_equal(links[1].gamma.grad, links[0].gamma.grad)


MESSAGES = [
    ({"axis": (0, 2, 3)}, r"axis must be all but the last, \(0, 1, 2\) in NHWC; found \(0, 2, 3\)"),
    ({"size": (3, 4)}, r"size must be a whole number, 1 or more; found \(3, 4\)"),
    ({"size": 3, "dtype": "float16"}, "dtype must be float32, as parameters and statistics are; found float16"),
]


@pytest.mark.parametrize(("arguments", "message"), MESSAGES)
def test_messages(arguments, message):
    with pytest.raises(ValueError, match=message):
        L.BatchNormalization(**arguments)

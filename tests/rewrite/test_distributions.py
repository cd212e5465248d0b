"""Distributions inside of converted models: entropies, samples and log-probabilities, against plain Chainer."""

import itertools

import chainer
import chainer.distributions as D
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import mixprec
from tests.cases import in_turn

OPTIONS = {
    "float16": {"compute": "float16"},
    "bfloat16": {"compute": "bfloat16"},
    "nchw": {"compute": "float16", "layout": "nchw"},
}
X = np.random.RandomState(0).normal(size=(3, 4)).astype(np.float32)


def positive(h):
    return F.softplus(h) + 0.5


def triangular(h):
    return F.reshape(positive(h), (-1, 2, 2)) * np.tril(np.ones((2, 2), np.float32))


DISTRIBUTIONS = {
    "Bernoulli": lambda h: D.Bernoulli(p=F.sigmoid(h)),
    "Bernoulli of logits": lambda h: D.Bernoulli(logit=h),
    "Beta": lambda h: D.Beta(positive(h), positive(-h)),
    "Categorical": lambda h: D.Categorical(p=F.softmax(h)),
    "Categorical of logits": lambda h: D.Categorical(logit=h),
    "Cauchy": lambda h: D.Cauchy(h, positive(h)),
    "Dirichlet": lambda h: D.Dirichlet(positive(h)),
    "Exponential": lambda h: D.Exponential(positive(h)),
    "Gamma": lambda h: D.Gamma(positive(h), positive(-h)),
    "Geometric": lambda h: D.Geometric(F.sigmoid(h)),
    "Independent": lambda h: D.Independent(D.Normal(h, positive(h))),
    "Laplace": lambda h: D.Laplace(h, positive(h)),
    "MultivariateNormal": lambda h: D.MultivariateNormal(h[:, :2], scale_tril=triangular(h)),
    "Normal": lambda h: D.Normal(h, positive(h)),
    "Normal of log": lambda h: D.Normal(h, log_scale=h),
    "OneHotCategorical": lambda h: D.OneHotCategorical(F.softmax(h)),
    "Poisson": lambda h: D.Poisson(positive(h)),
    "Uniform": lambda h: D.Uniform(low=h, high=h + positive(h)),
    "Uniform of loc": lambda h: D.Uniform(loc=h, scale=positive(h)),
}
VALUES = {  # inside of each support
    "Categorical": np.array([0, 1, 3]),
    "Dirichlet": np.full((3, 4), 0.25, np.float32),
    "OneHotCategorical": np.eye(4, dtype=np.float32)[:3],
    "MultivariateNormal": np.ones((3, 2), np.float32),
    **dict.fromkeys(("Bernoulli", "Exponential", "Geometric", "Poisson"), np.ones((3, 4), np.float32)),
}


def what(name, function, options, differentiate=False):
    """Returns what ``function`` makes of two distributions inside of a model, plain with ``None``, and the gradient."""
    seen = []

    class Model(chainer.Chain):
        def __init__(self):
            super().__init__()
            np.random.seed(0)
            with self.init_scope():
                self.l = L.Linear(4, 4)

        def forward(self, x):
            h = self.l(x)
            seen.append(function(DISTRIBUTIONS[name](h), DISTRIBUTIONS[name](h * 0.5)))
            return F.sum(F.cast(seen[-1], "float32"))

    model = Model()
    if options is not None:
        mixprec.convert(model, **options)
    loss = model(X)
    if not differentiate:
        return seen[-1]
    model.cleargrads()
    loss.backward()
    gradient = model.l.W.grad
    return seen[-1], np.zeros((4, 4)) if gradient is None else gradient.astype(np.float64)


QUANTITIES = {
    "entropy": lambda d, other, value: d.entropy,
    "log_prob": lambda d, other, value: d.log_prob(value),
    "kl": lambda d, other, value: chainer.kl_divergence(d, other),
}
LACKING = {  # in Chainer
    ("Cauchy", "kl"),
    *itertools.product(("Geometric", "OneHotCategorical", "Poisson"), ("entropy",)),
}


CASES = in_turn([each for each in itertools.product(DISTRIBUTIONS, QUANTITIES) if each not in LACKING], OPTIONS)


@pytest.mark.parametrize(("case", "options"), CASES)
def test_entropies_and_log_probabilities_and_their_gradients(case, options):
    name, quantity = case
    value = VALUES.get(name.partition(" of")[0], np.full((3, 4), 0.3, np.float32))

    def function(d, other):
        return QUANTITIES[quantity](d, other, value)

    expected, expected_gradient = what(name, function, None, differentiate=True)
    found, gradient = what(name, function, OPTIONS[options], differentiate=True)
    assert found.dtype == np.float32
    eps = 2.0**-8 if options == "bfloat16" else 2.0**-11
    is_finite = np.isfinite(expected.array)
    np.testing.assert_array_equal(np.isfinite(found.array), is_finite)
    bound = 16 * eps * np.abs(expected.array[is_finite]).max(initial=1)
    np.testing.assert_allclose(found.array[is_finite], expected.array[is_finite], atol=bound)
    np.testing.assert_allclose(gradient, expected_gradient, atol=32 * eps * max(1, np.abs(expected_gradient).max()))


@pytest.mark.parametrize(("name", "options"), in_turn(DISTRIBUTIONS, OPTIONS))
def test_samples(name, options):
    found = what(name, lambda d, other: d.sample(500), OPTIONS[options])
    expected = what(name, lambda d, other: d.sample(500), None)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    # Either of the same distribution: between medians lie few standard errors of one, by the spread of the middle half.
    spread = np.subtract(*np.percentile(expected.array, (75, 25), axis=0))
    difference = np.median(found.array, axis=0) - np.median(expected.array, axis=0)
    assert (np.abs(difference) <= 0.3 * spread + 1.0 * (expected.array == expected.array.round()).all(axis=0)).all()


@pytest.mark.parametrize("compute", ["float16", "bfloat16"])
def test_distributions_that_leave_draw_samples(compute):
    model = chainer.Sequential(L.Linear(4, 50), F.softmax, lambda p: (D.Categorical(p), D.OneHotCategorical(p=p)))
    mixprec.convert(model, compute=compute)
    for seed in range(20):
        x = np.random.RandomState(seed).normal(size=(8, 4)).astype(np.float32)
        assert [each.sample().shape for each in model(x)] == [(8,), (8, 50)]
        np.testing.assert_allclose(model(x)[0].p.array.sum(axis=1), 1, atol=1e-6)


def test_probabilities_that_do_not_sum_to_one_are_left_so():
    model = chainer.Sequential(L.Linear(4, 4), F.softmax, lambda p: D.Categorical(p * 0.5))
    mixprec.convert(model)
    np.testing.assert_allclose(model(X).p.array.sum(axis=1), 0.5, atol=1e-3)


def test_a_multivariate_normal_with_a_small_scale():
    def small(d, other):
        return D.MultivariateNormal(d.loc, scale_tril=d.scale_tril * 1e-5).log_prob(np.full((3, 2), 9.0, np.float32))

    found = what("MultivariateNormal", small, {})
    expected = what("MultivariateNormal", small, None)
    np.testing.assert_allclose(found.array, expected.array, rtol=5e-3)

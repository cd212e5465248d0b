"""Update rules against torch.optim on the CPU: an independent reference for the masters of the wrapper.

Gradients are written by hand, so that nothing but the update takes part. 50 steps must agree within 1e-6 in FP32, and
within the few roundings of a step in FP64, which Chainer has, too. Steps with an inf gradient, which torch does not
see, lie between them, and the learning rate falls halfway where the formulas allow that.
"""

import dataclasses
from collections.abc import Callable

import chainer
import numpy as np
import pytest
from chainer import optimizer_hooks, optimizers

import mixprec

INDEX = "https://download.pytorch.org/whl/cpu"
torch = pytest.importorskip("torch", reason=f"needs torch: pip install torch --index-url {INDEX}")

from tests.optimizer.batch import torch_rules  # noqa: E402  (it imports torch)

SHAPES = [(), (1,), (7,), (3, 5), (2, 3, 1, 4), (257, 129)]
STEPS = 50
SKIPPED = {0, 1, 17, 49}  # numbers of steps before which there is one with an inf gradient

# Root mean square of the difference in a parameter over that of all values, as a single one may come near 0. Every step
# rounds a few times on either side, by 2**-24 or 2**-53 at most, and these errors add up like a random walk.
TOLERANCE = {"float16": 1e-6, "float64": 1e-14}


@dataclasses.dataclass(frozen=True)
class Case:
    """The same optimizer twice.

    Attributes:
        chainer: returns Chainer's.
        torch: callable from parameters to torch's, a list of optimizers that step one after the other.
        scheduled: Chainer's hyperparameters that are the learning rate; empty if it must not change.
        weight_decay: rate of Chainer's hook.
    """

    chainer: Callable
    torch: Callable
    scheduled: tuple[str, ...] = ("lr",)
    weight_decay: float = 0.0


def _sgd(params, lr=0.1, **options):
    return torch.optim.SGD(params, lr=lr, **options)


ADAM = {"alpha": 0.01, "beta1": 0.9, "beta2": 0.99, "eps": 1e-30}
TORCH_ADAM = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-30}

CASES = {
    "SGD": Case(lambda: optimizers.SGD(lr=0.1), lambda params: [_sgd(params)]),
    # torch's buffer is -v of CorrectedMomentumSGD; it starts with the first gradient, which is 0 plus that.
    "CorrectedMomentumSGD, weight decay": Case(
        lambda: optimizers.CorrectedMomentumSGD(lr=0.1, momentum=0.9),
        lambda params: [_sgd(params, momentum=0.9, weight_decay=0.01)],
        weight_decay=0.01,
    ),
    # v of MomentumSGD holds learning rates of old steps: the same only as long as the rate stays.
    "MomentumSGD, weight decay": Case(
        lambda: optimizers.MomentumSGD(lr=0.1, momentum=0.9),
        lambda params: [_sgd(params, momentum=0.9, weight_decay=0.01)],
        scheduled=(),
        weight_decay=0.01,
    ),
    # torch: p += momentum * v - lr * g. Chainer: p += momentum**2 * v - (1 + momentum) * lr * g, with the new v, where
    # the formula of the literature has the old one. That is momentum times torch's step and one of gradient descent.
    "NesterovAG": Case(
        lambda: optimizers.NesterovAG(lr=0.1, momentum=0.9),
        lambda params: [_sgd(params, lr=0.09, momentum=0.9, nesterov=True), _sgd(params)],
        scheduled=(),
    ),
    "SGDW": Case(
        lambda: mixprec.SGDW(lr=0.1, momentum=0.9, weight_decay=0.1),
        lambda params: [torch_rules.SGDW(params, lr=0.1, decay=0.1, momentum=0.9)],
    ),
    "SGDW, Nesterov": Case(
        lambda: mixprec.SGDW(lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
        lambda params: [torch_rules.SGDW(params, lr=0.1, decay=0.1, momentum=0.9, nesterov=True)],
    ),
    "ScheduleFreeSGD": Case(
        lambda: mixprec.ScheduleFreeSGD(lr=0.1, momentum=0.9, weight_decay=0.01),
        lambda params: [torch_rules.ScheduleFreeSGD(params, lr=0.1, momentum=0.9, weight_decay=0.01)],
    ),
    "RMSprop": Case(
        lambda: optimizers.RMSprop(lr=0.01, alpha=0.75, eps=1e-2),
        lambda params: [torch.optim.RMSprop(params, lr=0.01, alpha=0.75, eps=1e-2)],
    ),
    # Chainer has eps in the square root, torch outside: the same for eps -> 0. delta is like v of MomentumSGD.
    "RMSpropGraves": Case(
        lambda: optimizers.RMSpropGraves(lr=0.01, alpha=0.75, momentum=0.9, eps=1e-30),
        lambda params: [torch.optim.RMSprop(params, lr=0.01, alpha=0.75, eps=0, centered=True, momentum=0.9)],
        scheduled=(),
    ),
    "AdaGrad": Case(
        lambda: optimizers.AdaGrad(lr=0.1, eps=1e-2), lambda params: [torch.optim.Adagrad(params, lr=0.1, eps=1e-2)]
    ),
    "AdaDelta": Case(  # Chainer has no learning rate
        lambda: optimizers.AdaDelta(rho=0.9, eps=1e-2),
        lambda params: [torch.optim.Adadelta(params, lr=1, rho=0.9, eps=1e-2)],
        scheduled=(),
    ),
    # Chainer adds eps to sqrt(v), torch to the bias-corrected sqrt(v): the same for eps -> 0.
    "Adam": Case(
        lambda: optimizers.Adam(**ADAM), lambda params: [torch.optim.Adam(params, **TORCH_ADAM)], scheduled=("alpha",)
    ),
    # A step takes weight_decay_rate * p off in Chainer, lr * weight_decay * p in torch.
    "AdamW": Case(
        lambda: optimizers.AdamW(**ADAM, weight_decay_rate=0.01 * 0.1),
        lambda params: [torch.optim.AdamW(params, weight_decay=0.1, **TORCH_ADAM)],
        scheduled=("alpha", "weight_decay_rate"),
    ),
    # Both take the maximum of v before its bias is corrected.
    "AMSGrad": Case(
        lambda: optimizers.AMSGrad(**ADAM),
        lambda params: [torch.optim.Adam(params, amsgrad=True, **TORCH_ADAM)],
        scheduled=("alpha",),
    ),
}


class Run:
    """A model under the wrapper, and the same parameters in torch."""

    def __init__(self, dtype, optimizer):
        self._random = np.random.RandomState(0)
        self.model = chainer.Chain()
        with self.model.init_scope():
            for number, shape in enumerate(SHAPES):
                setattr(self.model, f"p{number}", chainer.Parameter(self._numbers(shape, dtype)))
        self.optimizer = mixprec.MixedPrecisionOptimizer(optimizer).setup(self.model)
        wide = torch.float64 if dtype == "float64" else torch.float32
        self.params = [torch.nn.Parameter(torch.tensor(p.array, dtype=wide)) for p in self.model.params()]

    def _numbers(self, shape, dtype, scale=1.0):
        return np.asarray(self._random.normal(0, scale, shape)).astype(dtype)

    def write_gradients(self, scale=1.0):
        """Writes the same random gradients into the parameters of both."""
        self.model.cleargrads()
        for param, other in zip(self.model.params(), self.params, strict=True):
            param.grad = self._numbers(param.shape, param.dtype, scale)
            other.grad = torch.tensor(param.grad, dtype=other.dtype)

    def skip(self):
        """Makes a step with an inf gradient."""
        self.write_gradients()
        self.model.p3.grad[1, 2] = np.inf
        self.optimizer.update()
        assert self.optimizer.last_step_skipped

    def step(self, others):
        """Makes a step of both."""
        self.optimizer.update()
        assert not self.optimizer.last_step_skipped
        for other in others:
            other.step()

    def assert_same(self):
        """Compares all masters with torch's parameters."""
        everything = [param.detach().numpy() for param in self.params]
        size = _rms(np.concatenate([array.ravel() for array in everything]))
        for param, expected in zip(self.model.params(), everything, strict=True):
            found = self.optimizer.master(param).array
            error = _rms(found - expected) / size
            assert error <= TOLERANCE[param.dtype.name], f"{param.name} {param.shape}: {error:.1e}"
            np.testing.assert_array_equal(param.array, found.astype(param.dtype))


@pytest.fixture(autouse=True)
def _one_thread():
    """For arrays this small more threads only wait for each other, the more so where cores are busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _rms(array):
    return np.sqrt(np.mean(np.square(array, dtype=np.float64)))


# In FP64 Chainer's own loop runs, whose bits in FP32 are those of the batch.
DTYPES = pytest.mark.parametrize("dtype", ["float16", pytest.param("float64", marks=pytest.mark.slow)])


@DTYPES
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_as_in_torch(case, dtype):
    run = Run(dtype, case.chainer())
    if case.weight_decay:
        run.optimizer.add_hook(optimizer_hooks.WeightDecay(case.weight_decay))
    others = case.torch(run.params)
    for step in range(STEPS):
        if step in SKIPPED:
            run.skip()
        if step == STEPS // 2 and case.scheduled:
            for name in case.scheduled:
                setattr(run.optimizer, name, getattr(run.optimizer, name) * 0.3)
            for group in others[0].param_groups:
                group["lr"] *= 0.3
        run.write_gradients()
        run.step(others)
    assert (run.optimizer.t, run.optimizer.skipped) == (STEPS, len(SKIPPED))
    run.assert_same()


@DTYPES
def test_adam_with_an_eps_that_counts(dtype):
    """torch's eps becomes Chainer's once it is divided by the square root of the bias correction."""
    run = Run(dtype, optimizers.Adam(**{**ADAM, "eps": 0.1}))
    other = torch.optim.Adam(run.params, **TORCH_ADAM)
    for step in range(1, STEPS + 1):
        other.param_groups[0]["eps"] = 0.1 / (1 - 0.99**step) ** 0.5
        run.write_gradients()
        run.step([other])
    run.assert_same()


@DTYPES
def test_gradient_clipping(dtype):
    """Over all parameters together; every other step is below the threshold, and stays as it is."""
    run = Run(dtype, optimizers.CorrectedMomentumSGD(lr=0.1))
    run.optimizer.add_hook(optimizer_hooks.GradientClipping(100))
    other = torch.optim.SGD(run.params, lr=0.1, momentum=0.9)
    for step in range(STEPS):
        if step in SKIPPED:
            run.skip()
        run.write_gradients(0.25 + step % 2)
        norm = torch.nn.utils.get_total_norm([param.grad for param in run.params]).item()
        assert (norm > 100) == bool(step % 2)
        # torch divides by norm + 1e-6
        torch.nn.utils.clip_grad_norm_(run.params, 100 * (norm + 1e-6) / norm)
        run.step([other])
    run.assert_same()


def test_schedule_free_after_a_warm_up_is_evaluated_at_the_x_of_its_authors():
    run = Run("float64", mixprec.ScheduleFreeSGD(lr=0.1))
    other = torch_rules.ScheduleFreeSGD(run.params, lr=0.1)
    for step in range(STEPS):
        run.optimizer.lr = other.param_groups[0]["lr"] = 0.1 * min(1, (step + 1) / 20)
        if step in SKIPPED:
            run.skip()
        run.write_gradients()
        run.step([other])
    run.assert_same()
    with run.optimizer.evaluated():
        for param, expected in zip(run.model.params(), other.eval_arrays(), strict=True):
            np.testing.assert_allclose(param.array, expected, rtol=0, atol=1e-13)
    run.assert_same()

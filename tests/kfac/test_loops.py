"""Ways to run steps: accumulated gradients, loops of one's own, other losses, and schedules, beside FP64."""

import chainer
import chainer.functions as F
import numpy as np
import pytest

import mixprec
from tests.kfac import references
from tests.kfac.networks import CLASSES, batch, build, loss
from tests.kfac.references import assert_near, assert_same, layer_of, lower, seen_by_hooks, state_of, wrapped

DAMPING = 0.1


def _parts(model, x, t, count):
    for some, labels in zip(np.split(x, count), np.split(t, count), strict=True):
        yield loss(model, some, labels) / count


def _run(network, function, steps=2, rule=None, **options):
    model = build(network)
    rule = chainer.optimizers.MomentumSGD(0.02, 0.9) if rule is None else rule
    optimizer, kfac = wrapped(model, rule, damping=DAMPING, **options)
    for step in range(steps):
        function(optimizer, *batch(step))
    assert not optimizer.skipped
    return state_of(optimizer, kfac)


def _by_update(optimizer, x, t):
    optimizer.update(loss, optimizer.target, x, t)


def _by_parts(optimizer, x, t):
    optimizer.update(_parts, optimizer.target, x, t, 4)


def _by_own_loop(optimizer, x, t):
    optimizer.target.cleargrads()
    optimizer.scale_loss(loss(optimizer.target, x, t)).backward()
    optimizer.update()


def _by_parts_in_own_loop(optimizer, x, t):
    optimizer.target.cleargrads()
    for part in _parts(optimizer.target, x, t, 2):
        optimizer.scale_loss(part).backward()
    optimizer.update()


@pytest.mark.parametrize(
    ("function", "network"), [(_by_parts, "linear"), (_by_parts, "groups"), (_by_parts_in_own_loop, "stride")]
)
def test_accumulated_gradients_are_those_of_the_whole_batch(function, network):
    expected, found = _run(network, _by_update), _run(network, function)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert_near(found[name], value, 1e-5, name)


@pytest.mark.parametrize(("loss_scale", "batched"), [(2.0**8, True), (None, False), ("dynamic", True)])
def test_a_loop_of_ones_own_gives_the_same_bits(loss_scale, batched):
    expected = _run("conv+BN+ReLU", _by_update, loss_scale=2.0**8)
    assert_same(_run("conv+BN+ReLU", _by_own_loop, loss_scale=loss_scale, batched=batched), expected)
    assert_same(_run("conv+BN+ReLU", _by_update, loss_scale=loss_scale, batched=batched), expected)


def test_a_backward_pass_before_a_failure_is_not_a_part_of_the_next_step():
    def failing(model, x, t):
        yield loss(model, x, t)
        raise RuntimeError("lost")

    def run(fails):
        model = build("conv")
        optimizer, kfac = wrapped(model)
        for step in range(3):
            if fails:
                with pytest.raises(RuntimeError, match="lost"):
                    optimizer.update(failing, model, *batch(7))
            optimizer.update(loss, model, *batch(step))
        return state_of(optimizer, kfac)

    assert_same(run(True), run(False))


def test_an_update_that_failed_can_be_had_again():
    """With more damping, and the gradients that are there."""

    def run(fails):
        model = build("linear")
        optimizer, kfac = wrapped(model)
        for step in range(2):
            model.cleargrads()
            optimizer.scale_loss(loss(model, *batch(step))).backward()
            if fails:
                kfac.damping = 1e-30
                with pytest.raises(ValueError, match="plus damping 1e-30 are not positive definite in float32: set a"):
                    optimizer.update()
            kfac.damping = DAMPING
            optimizer.update()
        return state_of(optimizer, kfac)

    assert_same(run(True), run(False))


def test_gradients_that_a_user_writes_are_preconditioned_by_what_is_known():
    model = build("linear")
    optimizer, kfac = wrapped(model, damping=DAMPING)
    seen = seen_by_hooks(optimizer)
    optimizer.update(loss, model, *batch(0))
    before = {name: np.array(array) for name, array in kfac.state().items()}
    gradient = np.random.RandomState(0).normal(size=model[0].W.shape).astype(np.float32)
    model.cleargrads()
    model[0].W.grad, model[0].b.grad = gradient, np.ones(6, np.float32)
    optimizer.update()
    a, g = (inverse[0].astype(np.float64) for inverse in layer_of(kfac, "/0/W").inverses)
    expected = g @ np.concatenate([gradient, np.ones((6, 1))], axis=1) @ a
    assert_near(seen.found["/0/W"], expected[:, :-1], 1e-5)
    assert_near(seen.found["/0/b"], expected[:, -1], 1e-5)
    assert_same({name: np.array(array) for name, array in kfac.state().items()}, before)


# --- losses


def _smoothed(model, x, t):
    return mixprec.functions.softmax_cross_entropy(model(x), t, smoothing=0.2)


def _smoothed_in_fp64(model, x, t):
    target = np.full((len(t), CLASSES), 0.2 / CLASSES)
    target[np.arange(len(t)), t] += 0.8
    return F.sum(-target * F.log_softmax(model(x))) / len(t)


def _soft(model, x, t):
    target = np.random.RandomState(0).dirichlet(np.ones(CLASSES), len(t))
    return F.sum(-target.astype(x.dtype) * F.log_softmax(model(x))) / len(t)


@pytest.mark.parametrize(
    ("network", "ours", "plain"), [("linear", _smoothed, _smoothed_in_fp64), ("conv+BN+ReLU", _soft, _soft)]
)
def test_other_targets_than_labels(network, ours, plain):
    found = references.first_step(*wrapped(build(network), damping=DAMPING), ours, *batch(0))
    references.assert_step(found, references.expected_step(build(network), plain, *batch(0), DAMPING))


# --- several steps. A learning rate of 0 leaves the weights where they are, so that FP64 knows them.


def _in_fp64(network, steps):
    """Yields the link, second moments and plain gradients of all layers of each step."""
    for step in range(steps):
        x, t = batch(step)
        plain = references.doubled(build(network))
        calls, gradients = references.gradients_of(plain, lambda model, x=x, t=t: loss(model, x.astype(np.float64), t))
        yield calls, gradients


@pytest.mark.parametrize(("network", "decay"), [("conv+BN+ReLU", 0.95), ("linear", 0.0), ("groups", 0.5)])
def test_averages_and_inverses_of_several_steps(network, decay):
    """Inverses in each of the first eight steps, then as the schedule has it; damping is what it is in the step."""
    model, steps = build(network), 13
    optimizer, kfac = wrapped(model, chainer.optimizers.SGD(0.0), decay=decay, factor_every=2, inverse_every=4)
    seen = seen_by_hooks(optimizer)
    averages, inverses = {}, {}
    for step, (calls, gradients) in enumerate(_in_fp64(network, steps)):
        kfac.damping = damping = 0.1 + 0.01 * step
        optimizer.update(loss, model, *batch(step))
        for name, of_link in calls.items():
            link, prefix = of_link[0].link, name.rstrip("/")
            names = [f"{prefix}/{each}" for each in references.names_of(link)]
            if step < 8 or step % 2 == 0:
                moments = references.moments_of(of_link)
                held = averages.get(name, moments)
                averages[name] = [decay * old + (1 - decay) * new for old, new in zip(held, moments, strict=True)]
            if step < 8 or step % 4 == 0:
                inverses[name] = references.inverses_of(averages[name], damping)
            expected = references.preconditioned(link, [gradients[each] for each in names], inverses[name])
            for each, gradient in zip(names, expected, strict=True):
                assert_near(seen.found[each], gradient, 1e-4, (step, each))
            for found, average in zip(layer_of(kfac, names[0]).averages, averages[name], strict=True):
                assert_near(lower(found), lower(average), 1e-5, (step, name))


def test_kl_clip_needs_a_learning_rate():
    model = build("linear")
    optimizer, _ = wrapped(model, chainer.optimizers.AdaDelta(), kl_clip=0.1)
    with pytest.raises(ValueError, match="kl_clip needs a learning rate, and AdaDelta has none"):
        optimizer.update(loss, model, *batch(0))


@pytest.mark.parametrize(("rule", "clip"), [("SGD", 1e-6), ("Adam", 1e-3), ("AdamW", 1e-3), ("RMSprop", 1e6)])
def test_kl_clip(clip, rule):
    """min(1, sqrt(clip / (lr^2 sum of gradients before and after))), of all layers together."""
    x, t = batch(0)
    plain = references.doubled(build("two of all"))
    _, before = references.gradients_of(plain, lambda model: loss(model, x.astype(np.float64), t))
    _, after = references.step(plain, lambda model: loss(model, x.astype(np.float64), t), DAMPING)
    product = sum((before[name] * after[name]).sum() for name in before)
    scale = min(1, np.sqrt(clip / (0.05**2 * product)))
    assert (scale == 1) == (clip == 1e6)
    model = build("two of all")
    optimizer, kfac = wrapped(model, getattr(chainer.optimizers, rule)(0.3), damping=DAMPING, kl_clip=7.0)
    seen = seen_by_hooks(optimizer)
    numbers = {"Adam": {"alpha": 0.05}, "AdamW": {"alpha": 0.5, "eta": 0.1}}.get(rule, {"lr": 0.05})
    for name, value in numbers.items():  # of the step, not of the beginning
        setattr(optimizer, name, value)
    kfac.kl_clip = clip
    optimizer.update(loss, model, x, t)
    for name, gradient in after.items():
        assert_near(seen.found[name], scale * gradient, 1e-4, name)

"""What is wrong with Chainer 7.8.1's own mixed precision, each fault shown on Chainer itself and then absent here.

The model is almost always one row of weights with ``loss = w . x``, so that the gradient of the weights is ``x``. All
numbers are sums of few powers of two: what is asserted is exact.
"""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizer_hooks, optimizers, serializers

import mixprec
from mixprec.optimizer import UnscaledBackward
from tests.stand_ins import device_stand_in
from tests.stand_ins.device_stand_in import DeviceArray

INF = float("inf")


def _row(*weights):
    return L.Linear(len(weights), 1, nobias=True, initialW=np.array([weights], np.float32))


def _chainers(inner, model, dtype=np.float16):
    """Chainer's way: parameters cast by hand, updates in FP32. With ``dtype=np.float32`` it is the reference."""
    for param in model.params():
        if param.array is not None:
            param.array = param.array.astype(dtype)
    inner.use_fp32_update()
    return inner.setup(model)


def _ours(inner, model, loss_scale="dynamic"):
    mixprec.convert(model)
    return mixprec.MixedPrecisionOptimizer(inner, loss_scale).setup(model)


def _loss(model, *x):
    return F.sum(model(np.array([x], model.W.dtype)))


def _step_with(optimizer, *gradient):
    """A step with a gradient written by hand."""
    weight = optimizer.target.W
    weight.grad = np.array([gradient], weight.dtype)
    optimizer.update()


def _chainers_master(model):
    return model.W.update_rule._fp32_param.array[0].tolist()


def _master(optimizer):
    return optimizer.master(optimizer.target.W).array[0].tolist()


def _state(optimizer):
    """Everything that a step may change, as bytes by name."""
    saved = serializers.DictionarySerializer()
    optimizer.serialize(saved["optimizer"])
    optimizer.target.serialize(saved["model"])
    weights = {name: param.array.tobytes() for name, param in optimizer.target.namedparams()}
    return weights | {name: np.asarray(value).tobytes() for name, value in saved.target.items()}


def test_a_device_is_read_once_per_parameter():
    """A step reads nothing back from the device, however many parameters there are."""

    def rows(n):
        return device_stand_in.send(chainer.ChainList(*(_row(1) for _ in range(n))))

    def reads(optimizer):
        for param in optimizer.target.params():
            param.grad = device_stand_in.array(np.ones_like(param.array))
        DeviceArray.reads = 0
        optimizer.update()
        return DeviceArray.reads

    for n in (1, 5):
        chainers = _chainers(optimizers.MomentumSGD(), rows(n))
        chainers.loss_scaling()
        assert reads(chainers) == n
        assert reads(_ours(optimizers.MomentumSGD(), rows(n))) == 0


def test_a_snapshot_lacks_the_scale_and_the_masters(tmp_path):
    """A run resumed from its snapshots has the loss scale and every bit of the masters."""

    def save(optimizer):
        serializers.save_npz(tmp_path / "optimizer.npz", optimizer)
        serializers.save_npz(tmp_path / "model.npz", optimizer.target)

    def load(optimizer):
        serializers.load_npz(tmp_path / "optimizer.npz", optimizer)
        serializers.load_npz(tmp_path / "model.npz", optimizer.target)
        return optimizer

    def chainers(weight):
        optimizer = _chainers(optimizers.SGD(lr=2**-13), _row(weight))  # FP16 is spaced by 2**-11 below 1
        optimizer.loss_scaling()
        return optimizer

    def ours(weight):
        scale = mixprec.DynamicLossScale(init=2.0**8, interval=2)
        return _ours(optimizers.SGD(lr=2**-13), _row(weight), scale)

    interrupted = chainers(1)
    _step_with(interrupted, 1)
    assert interrupted._loss_scale == 2
    assert _chainers_master(interrupted.target) == [1 - 2**-13]
    save(interrupted)
    resumed = load(chainers(0))
    assert resumed._loss_scale == 1
    _step_with(resumed, 0)
    assert _chainers_master(resumed.target) == [1]

    interrupted = ours(1)
    for _ in range(3):
        _step_with(interrupted, 1)
    assert interrupted.loss_scale == 2**9
    assert _master(interrupted) == [1 - 3 * 2**-13]
    save(interrupted)
    resumed = load(ours(0))
    assert resumed.loss_scale == 2**9
    assert _master(resumed) == [1 - 3 * 2**-13]
    for optimizer in (interrupted, resumed):
        _step_with(optimizer, 1)
        assert optimizer.loss_scale == 2**10, "the clean step before the snapshot counts"
    assert _state(resumed) == _state(interrupted)


def test_growth_leaves_the_powers_of_two():
    """The scale doubles after ``interval`` clean steps and is a power of two at every step."""

    def scales(optimizer, name, steps):
        found = []
        for _ in range(steps):
            _step_with(optimizer, 1)
            found.append(getattr(optimizer, name))
        return found

    chainers = _chainers(optimizers.SGD(), _row(1))
    chainers.loss_scaling(interval=4)
    assert scales(chainers, "_loss_scale", 3) == [2, 4, 8], "without an overflow so far it does not wait at all"
    with pytest.warns(UserWarning, match="Non finite number found in param.grad of /W"):
        _step_with(chainers, INF)
    assert chainers._loss_scale == 4
    # A first step of 4 * 2**0.25: each gradient gets another mantissa, and is rounded, for no more room.
    assert scales(chainers, "_loss_scale", 4) == pytest.approx([4 * 2 ** (n / 4) for n in (1, 2, 3, 4)], rel=1e-12)

    ours = _ours(optimizers.SGD(), _row(1), mixprec.DynamicLossScale(init=8.0, interval=4))
    _step_with(ours, INF)
    assert ours.loss_scale == 4
    assert scales(ours, "loss_scale", 8) == [4, 4, 4, 8, 8, 8, 8, 16]


# At 2**6 Chainer divides the update by the scale, though the hook has seen to its length already, and clips what is
# short enough; at 2**15 the length of the scaled gradient is inf in FP16, and nothing is left.
@pytest.mark.parametrize(("scale", "left"), [(2.0**6, 2.0**-6), (2.0**15, 0)])
@pytest.mark.parametrize(
    ("hook", "length", "length_in_chainer"),
    [
        (optimizer_hooks.GradientClipping(0.3125), 0.3125, 0.3125),
        (optimizer_hooks.GradientClipping(1.25), 0.625, 1.25),
        (optimizer_hooks.GradientLARS(), 5, 5),
    ],
    ids=["clipping", "clipping of a short gradient", "LARS"],
)
def test_clipping_and_lars_see_scaled_gradients(hook, length, length_in_chainer, scale, left):
    """Hooks see unscaled FP32 gradients: clipping and LARS do what they do without mixed precision."""

    def start():
        return optimizers.SGD(lr=0.25), _row(3, 4)  # weights of length 5

    def step(optimizer):
        optimizer.add_hook(hook)
        optimizer.update(_loss, optimizer.target, 0.375, 0.5)  # a gradient of length 0.625

    def moved(length):
        return [3 - 0.25 * length * 0.6, 4 - 0.25 * length * 0.8]

    reference = _chainers(*start(), dtype=np.float32)
    step(reference)
    assert reference.target.W.array[0].tolist() == moved(length)

    chainers = _chainers(*start())
    chainers.loss_scaling(scale=scale)
    with np.errstate(over="ignore"):
        step(chainers)
    assert _chainers_master(chainers.target) == moved(length_in_chainer * left)

    ours = _ours(*start(), scale)
    step(ours)
    assert _master(ours) == moved(length)


def test_use_fp32_update_false_enables():
    """Masters are always FP32; whoever asks for anything else is told so."""
    chainers = optimizers.SGD().setup(_row(1))
    chainers.target.W.array = chainers.target.W.array.astype(np.float16)
    chainers.use_fp32_update(False)
    _step_with(chainers, 1)
    assert chainers.target.W.update_rule._fp32_param is not None

    with pytest.raises(AttributeError, match=r"use_fp32_update is not available .* master weights are always FP32"):
        _ours(optimizers.SGD(), _row(1)).use_fp32_update(False)


def test_a_static_scale_set_later_stays_dynamic():
    """A scale comes from one place; another one given later is refused."""
    chainers = _chainers(optimizers.SGD(), _row(1))
    chainers.loss_scaling()
    chainers.set_loss_scale(128.0)
    _step_with(chainers, 1)
    assert chainers._loss_scale == 256

    dynamic = _ours(optimizers.SGD(), _row(1))
    with pytest.raises(ValueError, match=r"loss_scale=128\.0 here, but the loss scale is that of MixedPrecision"):
        dynamic.set_loss_scale(128.0)
    assert dynamic.loss_scale == 2**16
    static = _ours(optimizers.SGD(), _row(1), 128)
    static.set_loss_scale(128.0)
    with pytest.raises(ValueError, match="leave it out here"):
        static.set_loss_scale(64.0)
    _step_with(static, 1)
    assert static.loss_scale == 128


def test_accumulated_gradients_are_unscaled_by_the_last_scale_only():
    """Backward passes that accumulate all have one scale, whatever becomes of the scale between them."""
    x = [(1.0, 2.0), (3.0, -1.0)]

    reference = _chainers(optimizers.SGD(lr=0.5), _row(8, 8), dtype=np.float32)
    reference.update(lambda: F.sum(reference.target(np.array(x, np.float32))))
    big_batch = reference.target.W.array[0].tolist()
    assert big_batch == [6, 7.5]

    chainers = _chainers(optimizers.SGD(lr=0.5), _row(8, 8))
    chainers.target.cleargrads()
    for example, scale in zip(x, (64.0, 8.0), strict=True):
        _loss(chainers.target, *example).backward(loss_scale=scale)
    chainers.update()
    assert _chainers_master(chainers.target) == [8 - 0.5 * (8 * 1 + 3), 8 - 0.5 * (8 * 2 - 1)]

    for overflow in (True, False):
        scale = mixprec.DynamicLossScale(init=64.0, interval=1)
        ours = _ours(optimizers.SGD(lr=0.5), _row(8, 8), scale)
        ours.target.cleargrads()
        for example in x:
            ours.scale_loss(_loss(ours.target, *example)).backward()
            scale.adjust(overflow)
        assert ours.loss_scale == (16 if overflow else 256)
        ours.update()
        assert _master(ours) == big_batch


def test_an_unscaled_backward_passes_for_a_scaled_one():
    """A backward pass without the scale raises, names the parameter, and changes nothing."""
    tiny = 2.0**-13

    def tiny_loss(model):
        return _loss(model, tiny) * tiny  # a gradient of 2**-26, which FP16 has room for only if it is scaled

    def grown():
        optimizer = _chainers(optimizers.SGD(lr=2.0**20), _row(1))
        optimizer.loss_scaling()
        for _ in range(10):
            _step_with(optimizer, 0)
        assert optimizer._loss_scale == 2**10
        optimizer.target.cleargrads()
        return optimizer

    chainers = grown()
    chainers.update(tiny_loss, chainers.target)
    assert _chainers_master(chainers.target) == [1 - 2.0**-6]
    chainers = grown()
    tiny_loss(chainers.target).backward()
    chainers.update()
    assert _chainers_master(chainers.target) == [1], "the gradient is 0, and nobody said so"
    assert chainers._loss_scale == 2**11, "as if it had been tried"

    ours = _ours(optimizers.SGD(lr=2.0**20), _row(1))
    ours.target.cleargrads()
    tiny_loss(ours.target).backward()
    before = _state(ours)
    with pytest.raises(UnscaledBackward, match="the gradient of /W comes"):
        ours.update()
    assert _state(ours) == before
    ours.target.cleargrads()
    ours.scale_loss(tiny_loss(ours.target)).backward()
    ours.update()
    assert _master(ours) == [1 - 2.0**-6]

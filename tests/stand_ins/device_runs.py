"""Runs of a small network on the stand-in for a device, and on the host beside it."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import optimizers, serializers

import mixprec

POISONED = {0, 3}  # also the first step
# For convert, Chainer's own functions: the stand-ins compute with NumPy, and count what is read.
CHAINERS = {"layout": "nchw", "fuse": False}


class Net(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.hidden = L.Linear(6, 5)
            self.bn = L.BatchNormalization(5)
            self.out = L.Linear(5, 2)

    def forward(self, x):
        return self.out(F.relu(self.bn(self.hidden(x))))


def new_optimizer(name, place, hooks=(), batched=True, rates=None, scale=None, **settings):
    np.random.seed(0)
    model = Net()
    mixprec.convert(model, **CHAINERS)
    place(model)
    scale = scale or mixprec.DynamicLossScale(init=2.0**8, interval=2, **settings)
    inner = getattr(mixprec if hasattr(mixprec, name) else optimizers, name)()
    optimizer = mixprec.MixedPrecisionOptimizer(inner, scale, batched=batched, rates=rates).setup(model)
    for hook in hooks:
        optimizer.add_hook(hook)
    return optimizer


def batch_of(step, place):
    x = np.random.RandomState(step).normal(size=(8, 6)).astype(np.float32)
    if step in POISONED:
        x[0, 0] = np.inf
    return place(x)


def run_step(optimizer, step, place, *, by_hand=False):
    def lossfun(x):
        return F.sum(F.square(optimizer.target(x)))

    if by_hand:
        with np.errstate(invalid="ignore"):
            loss = lossfun(batch_of(step, place))
            optimizer.target.cleargrads()
            optimizer.scale_loss(loss).backward()
        optimizer.update()
    else:
        optimizer.update(lossfun, batch_of(step, place))


def stay_on_host(link):
    return link


def state_of(optimizer):
    saved = serializers.DictionarySerializer()
    optimizer.serialize(saved["optimizer"])
    optimizer.target.serialize(saved["model"])
    return {name: np.asarray(value).view(np.ndarray) for name, value in saved.target.items()}


def assert_same_run(on_device, name, hooks, **tolerances):
    on_host = new_optimizer(name, stay_on_host, hooks)
    for step in range(6):
        run_step(on_host, step, np.array)
    found, expected = state_of(on_device), state_of(on_host)
    assert found.keys() == expected.keys()
    for key in expected:
        np.testing.assert_allclose(found[key], expected[key], err_msg=key, **{"rtol": 0, **tolerances})
    assert on_device.t == 4
    assert {param.update_rule.t for param in on_device.target.params()} == {4}

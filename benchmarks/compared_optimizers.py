"""The optimizers that are compared: plain Chainer's, mixprec's and torch's, with the same parameters."""

import time

import chainer
import numpy as np
from chainer import optimizer_hooks

import mixprec

WEIGHT_DECAY = 1e-4
LR = 1e-3


def _values(shape, scale=0.05, dtype=None):
    """Returns random numbers in a dtype, or in that of a parameter: weights are float16, all else float32."""
    numbers = np.random.RandomState(len(shape)).normal(0, scale, shape)
    return numbers.astype(dtype or (np.float16 if len(shape) > 1 else np.float32))


def chain(shapes, dtype=None):
    """Returns one link with parameters of these shapes and their gradients, as a user would write them,
    without a loss scale.
    """
    model = chainer.Chain()
    with model.init_scope():
        for number, shape in enumerate(shapes):
            setattr(model, f"p{number}", chainer.Parameter(_values(shape, dtype=dtype)))
    model.cleargrads()
    for param in model.params():
        param.grad = _values(param.shape, 0.01, param.dtype)
    return model


def plain(optimizer, model, hook):
    """Returns plain Chainer's ``update`` of a model, with FP32 copies of its float16 parameters."""
    optimizer.setup(model)
    optimizer.use_fp32_update()
    return _with_hook(optimizer, hook).update


def mixed(optimizer, model, hook, *, batched=True):
    """Returns mixprec's ``update`` of a model."""
    return _with_hook(mixprec.MixedPrecisionOptimizer(optimizer, batched=batched).setup(model), hook).update


def with_torch(torch, name, shapes, hook, **options):
    """Returns the ``step`` of ``torch.optim.<name>`` on float32 parameters of these shapes."""
    params = [torch.nn.Parameter(torch.randn(shape) * 0.05) for shape in shapes]
    for param in params:
        param.grad = torch.randn_like(param) * 0.01
    return getattr(torch.optim, name)(params, lr=LR, weight_decay=WEIGHT_DECAY if hook else 0, **options).step


def import_torch():
    """Returns ``(torch, "")``, or ``(None, why)`` where it is missing or broken."""
    try:
        import torch
    except Exception as error:  # a broken installation raises whatever it likes
        return None, f"torch cannot be imported: {error}"
    return torch, ""


def seconds(step):
    """Returns the seconds that a call takes on the host."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def take_turns(steps, turns, timed):
    """Times steps in turns, so that a drift of the machine hits all of them alike.

    Args:
        steps: dict from names to callables.
        turns: number of timed turns; one more is run before.
        timed: callable from such a callable to the seconds that it takes, or to its speed.

    Returns:
        dict from names to lists of what ``timed`` has returned
    """
    found = {name: [] for name in steps}
    for _ in range(turns + 1):
        for name, step in steps.items():
            found[name].append(timed(step))
    return {name: taken[1:] for name, taken in found.items()}


def _with_hook(optimizer, hook):
    if hook:
        optimizer.add_hook(optimizer_hooks.WeightDecay(WEIGHT_DECAY))
    return optimizer

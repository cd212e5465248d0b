"""What a habit is written in: a program that runs plain, under the wrapper, or converted, as a :class:`Setting` says.

A habit is a function of a :class:`Run`. It makes models, sets up optimizers by :meth:`Run.setup`, trains a few steps,
and returns the numbers that it saw: anything nested of numbers and arrays.
"""

import dataclasses

import chainer
import numpy as np

import mixprec

HABITS = {}
STEPS = 3
X = np.random.RandomState(1).normal(size=(6, 4)).astype(np.float32)
T = np.array([0, 1, 2, 0, 1, 2], np.int32)
IMAGES = np.random.RandomState(2).normal(size=(6, 3, 8, 8)).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Setting:
    """How a program runs.

    Attributes:
        wrapped: whether under the wrapper, or under Chainer's optimizer alone.
        loss_scale: of the wrapper.
        options: arguments of ``mixprec.convert``; ``None`` converts nothing.
        epsilon: distance of 1 from the next number in the dtype of activations.
    """

    wrapped: bool = True
    loss_scale: object = 64
    options: dict | None = None
    epsilon: float = 0.0


@dataclasses.dataclass(frozen=True)
class Habit:
    """A program, and how many epsilons its numbers may be apart.

    A network of a few layers rounds each activation, each gradient and each weight once, by half an epsilon. Most of
    these errors cancel each other over the elements of an array: 8 epsilons are more than twice what is seen. Where
    Adam divides small gradients by themselves, or the largest of several is chosen, it is more.

    Attributes:
        program: function of a :class:`Run`.
        roundings: the number of epsilons.
        without: names of the settings that say in an error that they do not do it.
    """

    program: object
    roundings: int = 8
    without: tuple = ()


def habit(**keywords):
    """Registers a program under its name."""

    def register(program):
        HABITS[program.__name__] = Habit(program, **keywords)
        return program

    return register


class Run:
    """One run of a habit."""

    def __init__(self, setting):
        self.setting = setting
        self._models, self._optimizers = [], []

    def setup(self, rule, model, hooks=(), convert=True):
        """Returns an optimizer for a model, which is converted afterwards if the setting says so.

        Args:
            rule: optimizer of Chainer.
            model: ``chainer.Link`` whose weights, statistics and other values are compared at the end.
            hooks: optimizer hooks.
            convert: ``False`` if the model is converted, or to be converted, by another call.
        """
        optimizer = rule
        if self.setting.wrapped:
            optimizer = mixprec.MixedPrecisionOptimizer(rule, self.setting.loss_scale)
        optimizer.setup(model)
        for hook in hooks:
            optimizer.add_hook(hook)
        self._models.append((model, _state(model)))
        self._optimizers.append(optimizer)
        if convert:
            self.convert(model)
        return optimizer

    def convert(self, model):
        if self.setting.options is not None:
            mixprec.convert(model, **self.setting.options)
        return model

    def backward(self, optimizer, loss):
        """Goes back through a loss that ``optimizer`` updates by."""
        if self.setting.wrapped:
            loss = optimizer.scale_loss(loss)
        loss.backward()

    def fit(self, optimizer, lossfun, *args, steps=STEPS):
        """Trains some steps on the same arguments; returns the losses."""
        losses = []

        def kept(*args):
            loss = lossfun(*args)
            losses.append(float(loss.array))
            return loss

        for _ in range(steps):
            optimizer.update(kept, *args)
        return losses

    def numbers(self, returned):
        """Returns two dicts: what the habit returned, and how far the values of its models have moved."""
        for optimizer in self._optimizers:
            assert not getattr(optimizer, "skipped", 0)
        moved = {}
        for place, (model, before) in enumerate(self._models):
            for name, value in _state(model).items():
                moved[f"{place}/{name}"] = value - before.get(name, 0)
        return dict(_flat(() if returned is None else returned, "result")), moved


def run(name, setting):
    """Runs a habit from the same random numbers as any other run of it."""
    np.random.seed(0)
    one = Run(setting)
    return one.numbers(HABITS[name].program(one))


def _state(model):
    """The FP32 values that a file of the model would have, in float64."""
    saved = chainer.serializers.DictionarySerializer()
    saved.save(model)
    return {name: np.array(value, np.float64) for name, value in saved.target.items() if value is not None}


def _flat(value, path):
    if isinstance(value, dict):
        value = sorted(value.items())
    elif isinstance(value, (list, tuple)):
        value = enumerate(value)
    else:
        yield path, np.array(chainer.as_array(value), np.float64)
        return
    for key, part in value:
        yield from _flat(part, f"{path}/{key}")

"""The optimizers that are compared, and the grids that their settings are chosen from."""

import dataclasses
import itertools

import chainer

import mixprec

MOMENTUM = 0.9
WEIGHT_DECAY = 1e-4
LOSS_SCALE = 2.0**16  # the first one in float16

SGD, LARS, KFAC = "SGD", "LARS", "K-FAC"

# LARS has two numbers: its learning rate moves biases and normalizations, which have no trust ratio, and times the
# trust coefficient all others.
_NAMES = {SGD: ("lr",), LARS: ("lr", "trust"), KFAC: ("lr", "damping")}

#: Of digits: name of the optimizer to lists of values for each of its numbers.
LARGE_GRID = {
    SGD: ((0.03, 0.1, 0.3, 1.0),),
    LARS: ((0.3, 1.0, 3.0), (0.01, 0.03, 0.1, 0.3)),
    KFAC: ((0.03, 0.1, 0.3), (0.01, 0.1)),
}

#: Of textures, where a run takes a minute.
SMALL_GRID = {
    SGD: ((0.1, 0.3, 1.0),),
    LARS: ((1.0,), (0.01, 0.03, 0.1)),
    KFAC: ((0.03, 0.1, 0.3), (0.1,)),
}


@dataclasses.dataclass(frozen=True)
class Arm:
    """An optimizer with its numbers.

    Attributes:
        name: :data:`SGD`, :data:`LARS` or :data:`KFAC`.
        values: the numbers, the learning rate first.
    """

    name: str
    values: tuple[float, ...]

    @property
    def lr(self):
        """The learning rate at the start."""
        return self.values[0]

    @property
    def settings(self):
        """Dict from names to numbers."""
        return dict(zip(_NAMES[self.name], self.values, strict=True))

    @property
    def title(self):
        """For people."""
        return ", ".join(f"{name} {value:g}" for name, value in self.settings.items())

    def optimizer(self, dtype):
        """Returns a new optimizer, to be set up with a model that computes in ``dtype``."""
        scale = mixprec.DynamicLossScale(LOSS_SCALE) if dtype == "float16" else None
        if self.name == LARS:
            lr, trust = self.values
            rule = mixprec.LARS(lr, MOMENTUM, WEIGHT_DECAY, trust_coefficient=trust)
            # On NumPy its steps are one by one anyhow; without `batched` there is no warning of it in each run.
            return mixprec.MixedPrecisionOptimizer(rule, scale, batched=False, no_decay="ndim <= 1")
        kfac = mixprec.KFAC(self.values[1]) if self.name == KFAC else None
        rule = chainer.optimizers.MomentumSGD(self.lr, MOMENTUM)
        return mixprec.MixedPrecisionOptimizer(rule, scale, no_decay="ndim <= 1", preconditioner=kfac)

    def add_hooks(self, optimizer):
        """Adds what an optimizer needs after ``setup``; LARS has its weight decay in the rule."""
        if self.name != LARS:
            optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(WEIGHT_DECAY))


def arms_of(grid):
    """Returns all arms of a grid, a list."""
    return [Arm(name, values) for name, lists in grid.items() for values in itertools.product(*lists)]

"""A negative control that no config can ask for: training without FP32 masters."""

import sys

from mixprec.app.commands import command_process

if __name__ == "__main__":
    command_process.begin()  # before the seconds that the imports below take

import mixprec
from mixprec.app.commands import train as command
from mixprec.app.parts import optimizers
from models import MODELS


class WithoutMasters(mixprec.MixedPrecisionOptimizer):
    """Plain FP16 weights: what rounding takes from them in a step is lost.

    A step of :class:`~mixprec.MixedPrecisionOptimizer` takes FP16 weights, widened, plus an update in FP32, and rounds
    the sum to FP16. Then the masters become what is in the model, so that the next step starts from the rounded
    weights and not from the sum. Gradients, momentum and the parameters of batch normalization are as ever.
    """

    def update(self, lossfun=None, *args, **kwds):
        """Runs one step."""
        super().update(lossfun, *args, **kwds)
        for param in self.target.params(include_uninit=False):
            master = self.master(param)
            if master.array is not param.array:
                master.array[...] = param.array


def main(argv=None):
    """Runs the training command without masters.

    Args:
        argv: as for :func:`mixprec.app.commands.train.main`.

    Returns:
        int: exit code, as there.
    """
    original = optimizers.MixedPrecisionOptimizer
    optimizers.MixedPrecisionOptimizer = WithoutMasters  # where build_optimizer looks for it
    try:
        return command.main(argv, MODELS)
    finally:
        optimizers.MixedPrecisionOptimizer = original


if __name__ == "__main__":
    sys.exit(command_process.run(main))

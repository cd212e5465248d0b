"""A negative control that no config can ask for: training without FP32 masters."""

import mixprec
from mixprec.training import command


class WithoutMasters(mixprec.MixedPrecisionOptimizer):
    """Plain FP16 weights: what rounding takes from them in a step is lost.

    A step is that of :class:`~mixprec.MixedPrecisionOptimizer`: FP16 weights, widened, plus an update in FP32, and the
    sum rounded to FP16. Then the masters become what is in the model, so that the next step starts from the rounded
    weights and not from the sum. Gradients, momentum and the parameters of batch normalization are as ever.
    """

    def update(self, lossfun=None, *args, **kwds):
        """Runs one step."""
        super().update(lossfun, *args, **kwds)
        for param in self.target.params(include_uninit=False):
            master = self.master(param)
            if master.array is not param.array:
                master.array[...] = param.array


def main(argv, networks):
    """Runs the training command without masters.

    Args:
        argv: as for :func:`mixprec.training.command.main`.
        networks: likewise.

    Returns:
        int: exit code, likewise.
    """
    original = mixprec.MixedPrecisionOptimizer
    mixprec.MixedPrecisionOptimizer = WithoutMasters  # where build_optimizer looks for it
    try:
        return command.main(argv, networks)
    finally:
        mixprec.MixedPrecisionOptimizer = original

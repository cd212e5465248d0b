"""Chainer's updater with a process for each GPU, around an optimizer with masters."""

from mixprec.compat.hooks import around


@around("chainer.training.updaters.multiprocess_parallel_updater:MultiprocessParallelUpdater.__init__")
def no_processes_without_masters(original, self, iterators, optimizer, *args, **kwds):
    """Without it MultiprocessParallelUpdater around MixedPrecisionOptimizer fails in a step, and its processes wait.

    It does not scale losses, and takes bfloat16 for float32.
    """
    if hasattr(optimizer, "scales_dynamically"):
        raise ValueError(
            "MultiprocessParallelUpdater does not scale losses: start a process for each GPU by mpiexec, with "
            "StandardUpdater and MixedPrecisionOptimizer(optimizer, communicator=communicator)"
        )
    original(self, iterators, optimizer, *args, **kwds)

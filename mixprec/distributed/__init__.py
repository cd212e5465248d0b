"""Gradients averaged over processes while the backward pass goes on.

``MixedPrecisionOptimizer(..., communicator=...)`` uses it through :mod:`mixprec.optimizer.ranks`, in every update:

- :mod:`~mixprec.distributed.launched`, :mod:`~mixprec.distributed.processes`: which of several processes this one is;
- :mod:`~mixprec.distributed.readiness`: when no function will add to a gradient any more;
- :mod:`~mixprec.distributed.buckets`: which gradients travel together;
- :mod:`~mixprec.distributed.arena`: the memory in which they travel, and which parameters have as gradients;
  :mod:`~mixprec.distributed.device_arena` is that of a GPU;
- :mod:`~mixprec.distributed.exchange`: what happens when in a step;
- :mod:`~mixprec.distributed.step_check`, :mod:`~mixprec.distributed.step_numbers`: what ranks tell each other before a
  step, and at its end;
- :mod:`~mixprec.distributed.same_models`: whether all processes have the same parameters;
- :mod:`~mixprec.distributed.transport`: what carries them, an interface; :mod:`~mixprec.distributed.mpi_transport`
  is MPI, :mod:`~mixprec.distributed.nccl_transport` NCCL.
"""

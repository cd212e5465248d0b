"""Averages gradients over processes during the backward pass.

``MixedPrecisionOptimizer(..., communicator=...)`` uses it through :mod:`mixprec.optimizer.ranks`, in every update. In
the order in which to read:

- :mod:`~mixprec.distributed.exchange`: the order of events in a step, which uses all of the following;
- :mod:`~mixprec.distributed.readiness`: detects when a gradient is final; :mod:`~mixprec.distributed.buckets`: which
  gradients are sent together;
- :mod:`~mixprec.distributed.arena`, :mod:`~mixprec.distributed.device_arena`: the memory of gradients on the host and
  on a GPU;
- :mod:`~mixprec.distributed.transport`: the interface of communication, with :mod:`~mixprec.distributed.mpi_transport`
  and :mod:`~mixprec.distributed.nccl_transport`;
- :mod:`~mixprec.distributed.same_models`, :mod:`~mixprec.distributed.step_check`,
  :mod:`~mixprec.distributed.step_numbers`: checks that ranks agree, before a step and at its end;
- :mod:`~mixprec.distributed.launched`, :mod:`~mixprec.distributed.processes`: the rank of this process, and the ranks
  of the training command; :mod:`~mixprec.distributed.leaving`, :mod:`~mixprec.distributed.rank_watch`: ranks that end
  or are killed.
"""

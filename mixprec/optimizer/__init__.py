"""The optimizer wrapper: FP32 master weights, loss scaling, skipped steps.

In the order in which to read:

==========================================================  =====================================================
:mod:`~mixprec.optimizer.wrapper`, ``delegation``           the class, ``update()``, and Chainer's interface
:mod:`~mixprec.optimizer.step`                              a step on one page: check -> hooks -> update | skip
:mod:`~mixprec.optimizer.update_form`                       the interface of its three forms: ``host_form``,
                                                            ``device_form``, ``fallback_form``
``batch``, ``rules``                                        the plan and the batched update; formulas of rules
:mod:`~mixprec.optimizer.masters`, ``model_index``          FP32 masters; whether the model has changed
``gradients``, ``running_statistics``, ``rule_states``      unscaled gradients; statistics and states of a step
``part_rates``, ``no_decay``, ``moving_average``            learning rates of parts; weight decay; averages
``evaluated_weights``, ``model_files``                      weights for evaluation; masters in files
``ranks``, ``counted_losses``                               several processes; several losses in a step
``overflow_watchdog``, ``diagnosis``, ``update_report``     the end of diverged training; ``optimizer.report()``
==========================================================  =====================================================

Loss scales, scaled backward passes and the search for a first scale are in :mod:`mixprec.precision`.
"""

from mixprec.optimizer.wrapper import MixedPrecisionOptimizer
from mixprec.precision.grad_scales import UnscaledBackward

__all__ = ["MixedPrecisionOptimizer", "UnscaledBackward"]

"""The optimizer wrapper: FP32 master weights, loss scaling, skipped steps.

In the order in which to read:

==========================================================  =====================================================
:mod:`~mixprec.optimizer.wrapper`, ``delegation``           the class, and ``update()``; as Chainer's code sees it
:mod:`~mixprec.precision.scaled_loss`, ``pass_scales``,     backward; what it leaves on parameters; by what each
``grad_scales``                                             gradient is scaled
:mod:`~mixprec.precision.scale_search`, ``repeated_pass``   the search for a first loss scale
:mod:`~mixprec.optimizer.step`                              a step on one page: check -> hooks -> update | skip
:mod:`~mixprec.optimizer.update_form`                       the interface of its three forms: ``host_form``,
                                                            ``device_form``, ``fallback_form``
:mod:`~mixprec.optimizer.masters`, ``model_index``          FP32 masters; whether anything has changed
:mod:`~mixprec.optimizer.running_statistics`                statistics that a skipped step brings back
``rules``                                                   formulas of update rules and of hooks
``batch``                                                   the plan, groups on the host, kernels on a device
==========================================================  =====================================================
"""

from mixprec.optimizer.wrapper import MixedPrecisionOptimizer
from mixprec.precision.grad_scales import UnscaledBackward

__all__ = ["MixedPrecisionOptimizer", "UnscaledBackward"]

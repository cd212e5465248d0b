"""K-FAC: curvature from the layers of a network, by which gradients are multiplied before they update anything.

:class:`~mixprec.kfac.preconditioner.KFAC` is the preconditioner that :class:`~mixprec.MixedPrecisionOptimizer` takes.
"""

"""The optimizer interface of the wrapper, with which Chainer's own code uses it like any optimizer.

:class:`~mixprec.MixedPrecisionOptimizer` derives from :class:`Delegation`. Training loops read and write
hyperparameters and counters through it; Chainer's updaters and ChainerMN's optimizer call the rest.
"""

import contextlib
from collections.abc import Callable
from typing import Any, Literal

import chainer

from mixprec.base import arguments
from mixprec.precision import grad_scales
from mixprec.precision.loss_scale import DynamicLossScale, StaticLossScale
from mixprec.precision.scale_search import give_up

# Chainer's own attributes for the same purposes; two mechanisms at once would divide the gradients twice.
_REPLACED = {
    "loss_scaling": "the loss_scale argument",
    "use_fp32_update": "nothing: master weights are always FP32",
    "update_loss_scale": "nothing: update() does it",
    "check_nan_in_grads": "nothing: update() does it",
    "is_safe_to_update": "last_step_skipped",
}


def checked(optimizer: Any) -> chainer.GradientMethod:
    """Returns the optimizer, after checking that it can be wrapped.

    Raises:
        TypeError: it is not a gradient method.
        ValueError: it has been set up already.
    """
    if not isinstance(optimizer, chainer.GradientMethod):
        hint = (
            "; wrap first, then create_multi_node_optimizer(MixedPrecisionOptimizer(optimizer), communicator)"
            if hasattr(optimizer, "actual_optimizer")
            else ""
        )
        kind = type(optimizer).__name__ if not isinstance(optimizer, type) else arguments.found(optimizer)
        raise TypeError(f"optimizer must be a chainer.GradientMethod; found {kind}{hint}")
    if optimizer.target is not None:
        raise ValueError("the optimizer is set up already; wrap it first, then call setup() on the wrapper")
    return optimizer


class Delegation:
    """Delegates attributes to the wrapped optimizer, except the wrapper's own and the ones that it replaces."""

    _OWN: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> Any:
        if name in self._OWN:  # not there yet: copy and pickle ask before __init__ ran
            raise AttributeError(name)
        if name in _REPLACED:
            raise AttributeError(f"{name} is not available on a MixedPrecisionOptimizer; use {_REPLACED[name]}")
        if name == "t":
            self._settle()
        return getattr(self._optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._OWN:
            super().__setattr__(name, value)
        elif isinstance(getattr(type(self), name, None), property):
            raise AttributeError(f"{name} of a MixedPrecisionOptimizer is read-only")
        else:
            if name == "t":
                self._settle()
            setattr(self._optimizer, name, value)

    def add_hook(
        self, hook: Callable[[Any], Any], name: str | None = None, timing: Literal["auto", "pre", "post"] = "auto"
    ) -> None:
        """Registers a hook of Chainer's or the user's: it sees FP32 masters with unscaled gradients.

        Args:
            hook, name, timing: as for :meth:`chainer.Optimizer.add_hook`. A ``WeightDecay`` skips the parameters that
                the wrapper's ``no_decay`` excludes.

        Raises:
            TypeError: ``hook`` is not callable, or ``name`` is not a string.
            ValueError: ``timing`` is invalid, or the hook has no name.
            KeyError: there is a hook of this name.
        """
        if not callable(hook):
            raise TypeError(f"hook must be a function; found {arguments.found(hook)}")
        if name is not None:
            arguments.instance("name", name, str, "a string or None")
        arguments.choice("timing", timing, ("auto", "pre", "post"))
        self._optimizer.add_hook(self._no_decay.hook(hook), name, timing)

    @property
    def skipped(self) -> int:
        """Number of steps skipped because of an overflow since training began; read from the device if it is there."""
        return self._counter.skipped

    @property
    def last_step_skipped(self) -> bool:
        """Whether the last step was skipped; read from the device if the flag is there."""
        return self._counter.last_skipped

    @property
    def communicator(self) -> Any:
        """The ChainerMN communicator over which gradients are averaged, or ``None``."""
        return None if self._ranks is None else self._ranks.communicator

    @property
    def preconditioner(self) -> Any:
        """The :class:`~mixprec.KFAC` that multiplies gradients, or ``None``."""
        return self._preconditioner

    @property
    def scales_dynamically(self) -> bool:
        """Whether the loss scale may change from step to step."""
        return isinstance(self._scaler, DynamicLossScale)

    @property
    def _loss_scale(self):
        # Code in the manner of ChainerMN's optimizer calls backward(loss_scale=optimizer._loss_scale).
        self._check_set_up()
        return self._passes.factor_on(self.target.device)

    def set_loss_scale(self, loss_scale: float) -> None:
        """Accepts the static scale that the wrapper already has, as Chainer's updaters pass it.

        Raises:
            ValueError: the wrapper has a different scale, or a dynamic one.
        """
        if not isinstance(self._scaler, StaticLossScale) or self._scaler.value != loss_scale:
            raise ValueError(
                f"loss_scale={arguments.found(loss_scale)} here, but the loss scale is set by "
                "MixedPrecisionOptimizer(optimizer, loss_scale): leave it out here"
            )

    @contextlib.contextmanager
    def _multi_node_step(self, lossfun, args, kwds, *, zero_fill):
        """A step of a ChainerMN optimizer around this one: passes run before the block, which averages gradients."""
        give_up(self._scaler, "ChainerMN's optimizer wraps this optimizer")
        self._run_passes(lossfun, args, kwds)
        if zero_fill:
            grad_scales.fill(self.target.params(), self._passes.factor)
        try:
            yield
        finally:
            self._statistics.forget()  # the first block does not update: it broadcasts the weights

    def _settle(self):
        """Brings ``t`` up to date, with a read from the device if steps have run there."""
        if self._optimizer_step is not None:
            self._optimizer_step.settle()

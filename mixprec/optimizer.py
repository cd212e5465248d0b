"""``MixedPrecisionOptimizer``: FP32 master weights and loss scaling around any gradient method of Chainer."""

import chainer
import numpy as np

from mixprec.loss_scale import DynamicLossScale, LossScaleExhausted, NoLossScale, StaticLossScale
from mixprec.masters import Masters
from mixprec.statistics import Statistics

# What Chainer's optimizers offer for the same purposes; two mechanisms at once would divide the gradients twice.
_REPLACED = {
    "loss_scaling": "the loss_scale argument",
    "set_loss_scale": "the loss_scale argument",
    "use_fp32_update": "nothing: master weights are always FP32",
    "update_loss_scale": "nothing: update() does it",
    "check_nan_in_grads": "nothing: update() does it",
    "is_safe_to_update": "last_step_skipped",
}


class MixedPrecisionOptimizer:
    """Wraps a Chainer optimizer for a model with FP16 parameters.

    The wrapped optimizer is set up on the FP32 masters of the model's parameters, so that its hooks, update rules and
    state run in Chainer's own code and in FP32 only. One step is, in this order: backward on the scaled loss; gradients
    unscaled into FP32; a check that all are finite; hooks; update of the masters; masters rounded into the model's
    parameters, in place. If a gradient is inf or NaN the step is skipped: masters, parameters, optimizer state, ``t``
    and batch-norm statistics stay as they were, and only the loss scale, its counters and :attr:`skipped` move.

    Hyperparameters (``optimizer.lr = 0.1``), hooks, ``t``, ``epoch`` and whatever else the wrapped optimizer has are
    reached through the wrapper, which therefore fits wherever Chainer wants an optimizer.

    Args:
        optimizer: a :class:`chainer.GradientMethod` that has not been set up yet.
        loss_scale: ``"dynamic"``, a number (a static scale, a power of two), ``None`` (no scaling), or a
            :class:`~mixprec.DynamicLossScale`, :class:`~mixprec.StaticLossScale` or :class:`~mixprec.NoLossScale`.

    Raises:
        TypeError: ``optimizer`` is not a gradient method, or ``loss_scale`` none of those.
        ValueError: ``optimizer`` has been set up already, or the static scale is not a power of two.
    """

    _OWN = ("_optimizer", "_scaler", "_masters", "_statistics", "_skipped", "_last_step_skipped")

    def __init__(self, optimizer, loss_scale="dynamic"):
        if not isinstance(optimizer, chainer.GradientMethod):
            raise TypeError(f"optimizer must be a chainer.GradientMethod; found {type(optimizer).__name__}")
        if optimizer.target is not None:
            raise ValueError("the optimizer is set up already; wrap it first, then call setup() on the wrapper")
        self._optimizer = optimizer
        self._scaler = _as_loss_scale(loss_scale)
        self._masters = None
        self._statistics = None
        self._skipped = 0
        self._last_step_skipped = False

    def __getattr__(self, name):
        if name in self._OWN:  # not there yet: copy and pickle ask before __init__ ran
            raise AttributeError(name)
        if name in _REPLACED:
            raise AttributeError(f"{name} is not available on a MixedPrecisionOptimizer; use {_REPLACED[name]}")
        return getattr(self._optimizer, name)

    def __setattr__(self, name, value):
        if name in self._OWN:
            super().__setattr__(name, value)
        elif isinstance(getattr(type(self), name, None), property):
            raise AttributeError(f"{name} of a MixedPrecisionOptimizer is read-only")
        else:
            setattr(self._optimizer, name, value)

    def setup(self, link):
        """Sets the model to optimize.

        Args:
            link: the model, usually after :func:`mixprec.convert`.

        Returns:
            The wrapper itself.
        """
        if not isinstance(link, chainer.Link):
            raise TypeError("optimization target must be a link")
        self._masters = Masters(link)
        self._statistics = Statistics(link)
        self._optimizer.setup(self._masters)
        self._masters.share_update_rules()
        return self

    @property
    def target(self):
        """The model, or ``None`` before :meth:`setup`."""
        return None if self._masters is None else self._masters.model

    @property
    def loss_scale(self):
        """The loss scale of the next step, a float."""
        return self._scaler.value

    @property
    def skipped(self):
        """Number of steps skipped because of an overflow, since the beginning of training."""
        return self._skipped

    @property
    def last_step_skipped(self):
        """Whether the last step was skipped."""
        return self._last_step_skipped

    def master(self, param):
        """Returns the FP32 master (a :class:`chainer.Parameter`) of a parameter of the model.

        An FP32 parameter is its own master.
        """
        self._check_set_up()
        return self._masters.of(param)

    def scale_loss(self, loss):
        """Returns the scaled loss, for loops that call ``backward`` themselves.

        ``optimizer.scale_loss(loss).backward()`` followed by ``optimizer.update()`` is one step.
        """
        return self._scaler.scale(loss)

    def update(self, lossfun=None, *args, **kwds):
        """Runs one step.

        Args:
            lossfun: loss function, called with ``args`` and ``kwds``. If it is ``None``, the gradients are those that
                the user's own ``backward`` on ``scale_loss(loss)`` left in the parameters; the forward pass is over
                then, and if the step is skipped, what it did to batch-norm statistics stays.

        Raises:
            LossScaleExhausted: gradients have not been finite for ``patience`` steps in a row.
        """
        self._check_set_up()
        # An overflow is what the loss scale waits for; NumPy's warnings about it would only repeat it.
        with np.errstate(over="ignore", invalid="ignore"):
            if lossfun is not None:
                self._statistics.save()
                loss = lossfun(*args, **kwds)
                self.target.cleargrads()
                self._scaler.scale(loss).backward()
                del loss
            overflow = not self._masters.gather_gradients(self._scaler)
        if overflow:
            self._statistics.restore()
        else:
            self._optimizer.update()
            self._masters.round_to_model()
        self._statistics.forget()
        self._last_step_skipped = overflow
        self._skipped += overflow
        self._scaler.adjust(overflow)
        if self._scaler.exhausted:
            names = ", ".join(self._masters.names_of_non_finite_gradients())
            raise LossScaleExhausted(
                f"gradients have overflowed in too many steps in a row (patience); loss scale {self.loss_scale:g}; "
                f"not finite in the last step: {names}"
            )

    def serialize(self, serializer):
        """Saves or loads optimizer state, counters, loss scale and masters, in Chainer's manner.

        Args:
            serializer: a :class:`chainer.AbstractSerializer`.
        """
        self._check_set_up()
        self._optimizer.serialize(serializer)
        own = serializer["mixprec"]
        self._skipped = int(own("skipped", self._skipped))
        self._last_step_skipped = bool(own("last_step_skipped", self._last_step_skipped))
        self._scaler.serialize(own["loss_scale"])
        self._masters.serialize_masters(own["masters"])

    def _check_set_up(self):
        if self._masters is None:
            raise RuntimeError("Optimizer is not set up. Call `setup` method.")


def _as_loss_scale(loss_scale):
    if loss_scale is None:
        return NoLossScale()
    if loss_scale == "dynamic":
        return DynamicLossScale()
    if isinstance(loss_scale, (NoLossScale, StaticLossScale)):
        return loss_scale
    if isinstance(loss_scale, (int, float)) and not isinstance(loss_scale, bool):
        return StaticLossScale(loss_scale)
    raise TypeError(f"loss_scale must be 'dynamic', a number, None or a loss scale object; found {loss_scale!r}")

"""``MixedPrecisionOptimizer``: FP32 master weights and loss scaling for any gradient method of Chainer.

A training loop, or Chainer's updater, calls ``update()`` once a step. The part of a step after ``backward`` is in
:mod:`mixprec.optimizer.step`.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Literal

import chainer

from mixprec.backends.cudnn.errors import lacks_memory
from mixprec.backends.dropout_state import serialize_dropout
from mixprec.base import arguments
from mixprec.kfac.preconditioner import KFAC
from mixprec.optimizer import gradients, masters, model_files, part_rates
from mixprec.optimizer.delegation import Delegation, checked
from mixprec.optimizer.evaluated_weights import Evaluation
from mixprec.optimizer.no_decay import NoDecay
from mixprec.optimizer.overflow_watchdog import OverflowWatchdog
from mixprec.optimizer.ranks import ranks_of
from mixprec.optimizer.rule_states import serialize_counters, serialize_optimizer
from mixprec.optimizer.running_statistics import RunningStatistics
from mixprec.optimizer.step import OptimizerStep
from mixprec.optimizer.update_report import UpdateReport
from mixprec.precision import grad_scales, pass_scales, scaled_loss
from mixprec.precision.loss_scale import DynamicLossScale, NoLossScale, StaticLossScale, as_loss_scale
from mixprec.precision.scale_search import ScaleSearch
from mixprec.precision.step_counter import StepCounter


class MixedPrecisionOptimizer(Delegation):
    """Wraps a Chainer optimizer for a model with FP16 or BF16 parameters.

    The wrapped optimizer works on FP32 masters of the model's parameters. One step does the following, in this order:
    backward on the scaled loss; unscale the gradients into FP32; check that all are finite; run hooks; check the result
    of the hooks; update the masters; round the masters into the model's parameters, in place. If anything is inf or NaN
    the step is skipped: masters, parameters, optimizer state, ``t`` and batch-norm statistics stay unchanged, and only
    the loss scale, its counters and :attr:`skipped` change.

    Hyperparameters (``optimizer.lr = 0.1``), hooks, ``t``, ``epoch`` and all other attributes of the wrapped optimizer
    are available on the wrapper, which therefore works wherever Chainer expects an optimizer.

    Example:
        >>> import chainer, chainer.functions as F, chainer.links as L, numpy as np
        >>> import mixprec
        >>> model = L.Linear(3, 2)
        >>> optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.MomentumSGD(lr=0.1)).setup(model)
        >>> report = mixprec.convert(model)  # parameters become FP16, masters keep their FP32 bits
        >>> x = np.full((4, 3), 0.1, np.float32)
        >>> optimizer.update(lambda: F.mean(model(x) ** 2))
        >>> model.W.dtype.name, optimizer.master(model.W).dtype.name
        ('float16', 'float32')
        >>> optimizer.loss_scale, optimizer.t, optimizer.skipped
        (65536.0, 1, 0)

        A loop of your own calls ``backward`` itself:

        >>> model.cleargrads()
        >>> optimizer.scale_loss(F.mean(model(x) ** 2)).backward()
        >>> optimizer.update()
        >>> optimizer.t
        2

    Args:
        optimizer: a :class:`chainer.GradientMethod` that has not been set up yet.
        loss_scale: ``"dynamic"``, a number (a static scale, a power of two), ``None`` (no scaling), or a
            :class:`~mixprec.DynamicLossScale`, :class:`~mixprec.StaticLossScale` or :class:`~mixprec.NoLossScale`.
        batched: whether all parameters are updated together, a thousand with as many launches as one. Parameters that
            cannot be batched are updated by Chainer's own loop; :meth:`report` lists them with the reasons. On NumPy
            the results are the same bit for bit.
        no_decay: parameters without weight decay: ``"ndim <= 1"`` (biases, and scales and shifts of normalizations), a
            link class such as :class:`chainer.links.BatchNormalization` (the parameters that such links own), or a
            tuple of these. It applies to ``WeightDecay`` hooks of the optimizer and to weight decay that is a
            hyperparameter of the rule; it also switches off the trust ratio of LARS and LAMB.
        zero_gradients: whether a step sets the gradients to zero, so that the next backward pass needs no
            ``cleargrads``.
        preconditioner: :class:`~mixprec.KFAC`, which multiplies gradients before hooks see them, or ``None``.
        communicator: a ChainerMN communicator, such as ``chainermn.create_communicator("naive")``: gradients are
            averaged over its processes during the last backward pass of an update. All processes step, or skip,
            together.
        allreduce_dtype: dtype in which FP16 and BF16 gradients are added then: ``"float32"``, ``"float16"`` or
            ``"bfloat16"``; ``None`` is FP32 on NumPy, and the gradients' own dtype on a GPU. FP32 gradients are always
            added in FP32.
        rates: factors on the learning rate for parts of the model, a dict from patterns for parameter names to factors:
            ``{"/fc/*": 10.0, "/conv1/*": 0}``. If several patterns match a name (:mod:`fnmatch`; ``*`` matches slashes,
            too), the last one is used. 0 freezes a parameter: it stays as it is, without gradient, decay and state, and
            no backward pass runs for layers before the first trained one.

    Raises:
        TypeError: ``optimizer`` is not a gradient method, or another argument has a wrong type.
        ValueError: ``optimizer`` has been set up already, the static scale is not a power of two, or a factor in
            ``rates`` is negative.
    """

    _OWN = (
        *("_optimizer", "_scaler", "_no_decay", "_rates", "_options", "_ranks", "_preconditioner"),  # the constructor's
        *("_masters", "_statistics", "_optimizer_step", "_counter", "_passes", "_watchdog", "_evaluation"),
    )

    def __init__(
        self,
        optimizer: chainer.GradientMethod,
        loss_scale: Literal["dynamic"] | float | NoLossScale | StaticLossScale | DynamicLossScale | None = "dynamic",
        *,
        batched: bool = True,
        no_decay: str | type[chainer.Link] | tuple[str | type[chainer.Link], ...] | None = None,
        zero_gradients: bool = False,
        preconditioner: KFAC | None = None,
        communicator: Any = None,
        allreduce_dtype: str | None = None,
        rates: dict[str, float] | None = None,
    ) -> None:
        self._optimizer = checked(optimizer)
        self._scaler = as_loss_scale(loss_scale)
        self._masters = self._statistics = self._optimizer_step = None  # which setup makes
        self._no_decay = NoDecay(no_decay)
        self._rates = part_rates.checked(rates)
        self._evaluation = Evaluation()
        self._ranks = ranks_of(communicator, allreduce_dtype)
        options = {"batched": batched, "zero_gradients": zero_gradients}
        self._options = {name: arguments.flag(name, value) for name, value in options.items()}
        self._counter = StepCounter()
        if preconditioner is not None:
            arguments.instance("preconditioner", preconditioner, KFAC, "a mixprec.KFAC or None")
        self._preconditioner = preconditioner
        self._passes = scaled_loss.ScaledPasses(self._scaler, preconditioner)
        self._watchdog = OverflowWatchdog(self._scaler, getattr(communicator, "rank", None))

    def __getstate__(self):
        if self._ranks is not None:
            raise TypeError("an optimizer with a communicator cannot be copied or pickled: use chainer.serializers")
        self._settle()
        scales = [] if self._masters is None else grad_scales.scales_of(self.target)
        return {**self.__dict__, "_optimizer_step": None, "_grad_scales": scales}

    def __setstate__(self, state):
        scales = state.pop("_grad_scales")
        self.__dict__.update(state)
        if self._masters is not None:
            self._statistics.watch(self._masters.index)
            if self._preconditioner is not None:
                self._preconditioner.attach(self, self._masters.index)
            self._start(scales)
        self._watchdog.look_next_time()  # a transfer under way from a device stays with the original

    def setup(self, link: chainer.Link) -> "MixedPrecisionOptimizer":
        """Sets the model to optimize, best before :func:`mixprec.convert`; returns the wrapper itself.

        Masters start from the current parameters: in FP32 before the conversion, rounded after it. As in Chainer, steps
        and state start afresh; the loss scale keeps its value.

        Raises:
            TypeError: ``link`` is not a :class:`chainer.Link`.
            ValueError: a pattern of ``rates`` matches no parameter, or all are frozen; with a communicator, model, loss
                scale or ``rates`` differ between processes.
        """
        arguments.instance("link", link, chainer.Link, "a chainer.Link")
        if self._options["zero_gradients"]:
            grad_scales.clear_initial(link.params())
        self._masters = masters.Masters(link, self._no_decay, self._rates)
        self._statistics = RunningStatistics(self._masters.index)
        self._optimizer.setup(self._masters)
        self._masters.share_update_rules()
        if self._ranks is not None:
            self._ranks.set_up(self._masters, self._statistics, self._scaler, self._preconditioner, self._rates)
        if self._preconditioner is not None:
            self._preconditioner.attach(self, self._masters.index, self._ranks)
        self._passes.factor = None
        self._counter = StepCounter()
        self._start()
        return self

    @property
    def target(self) -> chainer.Link | None:
        """The model, or ``None`` before :meth:`setup`."""
        return None if self._masters is None else self._masters.model

    @property
    def loss_scale(self) -> float:
        """The loss scale of the next step, a float; each access reads it from the device, if it is there."""
        return self._scaler.value

    def master(self, param: chainer.Parameter) -> chainer.Parameter:
        """Returns the FP32 master of a parameter of the model, a :class:`chainer.Parameter`.

        The master of an FP32 parameter shares its array.

        Raises:
            TypeError: ``param`` is not a parameter.
            ValueError: ``param`` is not a parameter of the model.
        """
        self._check_set_up()
        arguments.instance("param", param, chainer.Parameter, "a chainer.Parameter")
        for name, own in self.target.namedparams():
            if own is param:
                return self._masters.current(name, param)
        raise ValueError(f"{param.name or 'the parameter'} is not a parameter of the model that is optimized")

    def unscaled_gradients(self) -> Iterator[tuple[str, Any]]:
        """Yields ``(name, gradient)`` of the last backward pass, before hooks.

        Names are as in ``namedparams`` of the model; gradients are new float32 arrays on the parameter's device.
        """
        self._check_set_up()
        return gradients.unscaled(self._masters)

    @contextlib.contextmanager
    def evaluated(self) -> Iterator[None]:
        """Returns a context manager in which the model has the weights for evaluation.

        With :class:`~mixprec.ScheduleFreeSGD` these are averages, and inside of the context the optimizer can neither
        step nor be saved: both raise :class:`RuntimeError`. With other optimizers the weights do not change. Afterwards
        they are restored bit for bit. The model may be saved inside. Running statistics are not replaced; if the model
        is called inside in training mode to recompute them, a later skipped step keeps the new ones.
        """
        self._check_set_up()
        with self._statistics.outside_of_steps(), self._evaluation.of(self.target):
            yield

    def report(self) -> UpdateReport:
        """Returns an :class:`~mixprec.optimizer.update_report.UpdateReport`: how each parameter is updated."""
        self._check_set_up()
        return UpdateReport.of(self._optimizer_step.plan, self.target)

    def scale_loss(self, loss: chainer.Variable) -> chainer.Variable:
        """Returns the scaled loss, for loops that call ``backward`` themselves.

        ``optimizer.scale_loss(loss).backward()`` followed by ``optimizer.update()`` is one step. Several such backward
        passes before an update accumulate their gradients; all have the scale of the first.

        Raises:
            TypeError: ``loss`` is not a floating-point variable.
            ValueError: ``loss`` does not have exactly one element, or is scaled already.
        """
        return self._passes.scale(loss)

    def update(self, lossfun: Callable[..., Any] | None = None, *args: Any, **kwds: Any) -> None:
        """Runs one step. With arrays on a GPU nothing is read back; ``docs/numerics.md`` lists the exceptions.

        Args:
            lossfun: loss function, called with ``args`` and ``kwds``. It may return an iterator of losses, such as a
                generator: ``backward`` of each runs before the next one is requested, and the gradients are summed. If
                it is ``None``, the parameters must have gradients already: from the user's own ``backward`` on
                ``scale_loss(loss)``, or unscaled ones that the user wrote there.

        Raises:
            TypeError: ``lossfun`` is not a function, or does not return floating-point variables.
            ValueError: a returned loss does not have exactly one element.
            UnscaledBackward: the user's own ``backward`` went through FP16, and not all such passes were called on
                ``scale_loss(loss)``. Nothing has changed.
            LossScaleExhausted: gradients have not been finite for ``patience`` steps in a row.
        """
        if self._evaluation.has_averages:
            self._evaluation.refuse("update")
        self._step(lossfun, args, kwds)
        self._finish(lossfun, lambda: (args, kwds))

    def _step(self, lossfun, args, kwds):
        """Runs a step as far as :meth:`_finish`."""
        self._run_passes(lossfun, args, kwds)
        try:
            if self._ranks is not None:
                self._ranks.finish(self._passes, lossfun is None)
            self._passes.factor = None  # backward is over: gradients have their scale
            self._optimizer_step.run(self._scaler, self._counter, self._statistics)
            if self._ranks is not None:
                self._ranks.complete()
        except BaseException:  # leave everything as if the step had not begun
            self._statistics.undo(True)
            self._statistics.forget()
            raise
        self._statistics.forget()
        if lossfun is None and self._scaler.is_searching:
            self._scaler.end_search()  # the user's own loop: its passes are over

    def _finish(self, lossfun, arguments, *, wait=True):
        """Ends a step, which a graph may have run; arguments as for :meth:`OverflowWatchdog.check`."""
        if self._preconditioner is not None:
            self._preconditioner.over(self._counter.arrays[1])
        self._watchdog.steps -= 1
        if self._watchdog.steps <= 0:
            self._watchdog.check(self._masters, self._statistics, lossfun, arguments, wait=wait)

    def _run_passes(self, lossfun, args, kwds):
        """Runs the forward and backward passes of a step, if it has a loss function."""
        self._check_set_up()
        if lossfun is None:
            return
        if not callable(lossfun):
            arguments.function("lossfun", lossfun)
        self._passes.factor = None
        if self._ranks is not None:
            self._ranks.begin(lambda: lossfun(*args, **kwds))
        self._statistics.save()
        try:
            search = self._search() if self._scaler.is_searching else None
            self._passes.run(self._masters.model, lossfun, args, kwds, self._ranks, search)
        except BaseException as error:
            if lacks_memory(error):  # a captured step frees memory, and retries
                self._statistics.undo(True)
            self._statistics.forget()  # no step is under way
            raise

    def _search(self):
        """Returns the search for the first loss scale in this step."""
        reason = None if self._preconditioner is None else "K-FAC looks at layers in the backward pass"
        return ScaleSearch(self._scaler, self._ranks, lambda: self._optimizer_step.overflows(self._statistics), reason)

    def serialize(self, serializer: chainer.AbstractSerializer) -> None:
        """Saves or loads optimizer state, counters, loss scale and the random state of dropout, in Chainer's manner.

        The masters are in the model's file, under the model's own names. A file without a loss scale, such as a file of
        plain Chainer, is loaded with a warning, and the loss scale starts afresh.

        Args:
            serializer: a :class:`chainer.AbstractSerializer`.

        Raises:
            ValueError: the file was written with another optimizer, or has K-FAC matrices of other layers. Nothing has
                changed.
        """
        self._check_set_up()
        if self._evaluation.has_averages:
            self._evaluation.refuse("serialize")
        arguments.instance("serializer", serializer, chainer.AbstractSerializer, "a chainer.AbstractSerializer")
        self._settle()
        own = serializer["mixprec"]
        take = None if self._preconditioner is None else self._preconditioner.serialize(own)
        serialize_optimizer(self._optimizer, self._masters, serializer, own)
        if not serialize_counters(own, self._counter, self._scaler):
            self._counter = StepCounter()
        if take is not None:
            take()
        serialize_dropout(own, dict.fromkeys(param.device for param in self.target.params()))
        if isinstance(serializer, chainer.Deserializer):
            self._passes.factor = None
            if self._optimizer.t > 0 and self._scaler.is_searching:  # an old file, which does not record this
                self._scaler.end_search()
            self._watchdog.look_next_time()
            self._optimizer_step.renew_plan()

    def _start(self, scales=()):
        self._optimizer_step = OptimizerStep(self._optimizer, self._masters, self._preconditioner, **self._options)
        model_files.install()
        pass_scales.install()
        gradients.install()
        grad_scales.start(self.target, scales)

    def _check_set_up(self):
        if self._masters is None:
            raise RuntimeError("Optimizer is not set up. Call `setup` method.")

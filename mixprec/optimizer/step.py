"""A step of the optimizer on one page: check -> hooks -> update | skip.

:class:`OptimizerStep` is made by ``setup`` of :class:`~mixprec.MixedPrecisionOptimizer`, which calls
:meth:`OptimizerStep.run` in each ``update()``, when gradients are there. The page is :meth:`OptimizerStep.run`. How its
parts are done depends on where the parameters are: :mod:`~mixprec.optimizer.update_form` has the interface, and
``host_form``, ``device_form`` and ``fallback_form`` beside it are its three implementations.
"""

import contextlib
import functools

import numpy as np

from mixprec.backends import launcher_of
from mixprec.optimizer.batch.update_plan import plan
from mixprec.optimizer.device_form import DeviceForm
from mixprec.optimizer.fallback_form import FallbackForm
from mixprec.optimizer.gradients import unscale_into_master
from mixprec.optimizer.host_form import HostForm
from mixprec.optimizer.model_index import Changes
from mixprec.optimizer.rule_states import init_states
from mixprec.precision.grad_scales import MIXED, NOT_REACHED, UNSCALED_FP16, ZERO, check_scaled, only_scale, use
from mixprec.precision.loss_scale import NoLossScale
from mixprec.precision.weight_copies import announce_wide


class OptimizerStep:
    """Runs the steps of an optimizer: most parameters in a batch, the others one by one, as in Chainer.

    Args:
        optimizer: Chainer's optimizer, set up on ``masters``.
        masters: :class:`~mixprec.optimizer.masters.Masters`.
        preconditioner: :class:`~mixprec.kfac.preconditioner.KFAC`, or ``None``.
        batched: whether parameters may be batched at all.
        zero_gradients: whether to leave zeros in the gradients.

    Attributes:
        changes: the :class:`~mixprec.optimizer.model_index.Changes` of the current plan.
        shares_rules: whether another optimizer shares the update rules, whose ``t`` it must then know at once.
    """

    def __init__(self, optimizer, masters, preconditioner, *, batched, zero_gradients):
        self._optimizer, self._masters, self._preconditioner = optimizer, masters, preconditioner
        self._wanted, self._zero_gradients = batched, zero_gradients
        self._announced = set()
        self._plan = self.changes = self._seed = None  # the seed is for the noise on a device
        self._form = None  # updates most parameters
        self._beside = None  # the FallbackForm for parameters that the form does not support, or None
        self._masters_in_step = None  # returns the context in which a step runs
        self.shares_rules = False

    def run(self, scaler, counter, statistics):
        """Updates the parameters from the gradients of the model, unless one of them is not finite.

        Args:
            scaler: the loss scale, which advances.
            counter: :class:`~mixprec.precision.step_counter.StepCounter`, which counts the step.
            statistics: :class:`~mixprec.optimizer.running_statistics.RunningStatistics`, which a skipped step restores.

        Returns:
            Whether the step is skipped: a boolean array of shape (), valid until the next step.
        """
        self._refresh()
        form, changes = self._form, self.changes
        scales, gradients = changes.look()
        scale = only_scale(scales)
        if scale is MIXED or scale is UNSCALED_FP16 or scale is None:
            check_scaled(self._masters.index.namedparams, scales, expected=not isinstance(scaler, NoLossScale))

        with self._masters_in_step():
            done = () if self._preconditioner is None else self._preconditioned()
            skip = form.check(scale, gradients, statistics, done)  # unscaled into FP32: is any inf or NaN?
            skip = form.run_hooks(skip)  # have hooks produced any?
            if self._beside is not None:  # first, as it can be undone
                skip = self._beside.update(skip | self._beside.check(done=done), scaler, counter)
            skip = form.update(skip, scaler, counter)  # all or nothing
            if self._preconditioner is not None:
                self._preconditioner.keep(skip)

        if skip is not False:  # on a device it is an array
            statistics.undo(skip, but=form.restored)
        if not form.moves_counters:
            counter.adjust(skip)
            scaler.adjust(skip)

        if self._zero_gradients:
            self._zero(changes.params, gradients)
        elif scale is not NOT_REACHED:
            use(changes.params, scales, gradients)
        changes.expect()
        if self.shares_rules:
            self.settle()
        return skip

    def overflows(self, statistics):
        """Returns whether a gradient of the model is not finite now: a bool, or a boolean array of shape (), unread.

        Nothing else is different afterwards.

        Args:
            statistics: as for :meth:`run`.
        """
        self._refresh()
        scales, gradients = self.changes.look()
        with self._masters_in_step():
            found = self._form.check(only_scale(scales), gradients, statistics, ())
            if self._beside is not None:
                found = found | self._beside.check()
        self._form.forget()
        return found

    @property
    def plan(self):
        """The current :class:`~mixprec.optimizer.batch.update_plan.UpdatePlan`."""
        self._refresh()
        return self._plan

    def settle(self):
        """Brings ``t`` of optimizer and rules up to date, with one read if steps on a device are outstanding."""
        settled = [form.settle() for form in (self._form, self._beside) if form is not None]
        if any(settled) and self.changes is not None:
            self.changes.expect()

    def seed_of_noise(self):
        """Returns the seed of the random numbers on a device, drawn at the first call."""
        if self._seed is None:
            self._seed = int(np.random.randint(1 << 31))
        return self._seed

    # --- for graphs, which launch a step without running it here

    @property
    def batch(self):
        """The object that updates the batch, on a device a ``DeviceBatch``; a new one after the plan changes."""
        return None if self._form is None else self._form.batch

    def unchanged(self):
        """Whether nothing has changed since the plan was made; for calls between steps."""
        return self.changes.none()

    def before_launch(self):
        """Must be called before a graph that runs a step is launched."""
        if self.batch.must_settle:
            self.settle()
        self.batch.follow_bases()

    def after_launch(self):
        """Must be called after a graph that runs a step was launched."""
        self._form.after_launch()
        self.changes.expect()

    # --- the plan

    def _refresh(self):
        """Makes a new plan, and forms for it, if anything has changed since the last plan."""
        if self.changes is not None and self.changes.none():
            return
        self.changes = None  # if this fails, the next step makes everything again
        if self._wanted:
            self.settle()
            self._form = self._beside = None
        optimizer, masters = self._optimizer, self._masters
        namedparams = masters.all_current()
        launcher = next((launcher_of(param.array) for _, param, _ in namedparams if param.array is not None), None)
        self._plan = plan(optimizer, namedparams, self._wanted, on_device=launcher is not None)
        announce_wide((name, param) for name, param, _ in namedparams)
        if self._wanted:
            self._plan.announce(self._announced)
        self._masters_in_step = contextlib.nullcontext  # a batch takes care of its masters itself
        if not self._plan.entries:
            self._form, self._masters_in_step = FallbackForm(optimizer, self._form), masters.fixed
        else:
            init_states(namedparams, self._plan.entries)
            if launcher is None:
                self._form = HostForm(optimizer, masters, self._plan, masters.index.params)
            else:
                self._form = DeviceForm(self, optimizer, self._plan, launcher, self._zero_gradients)
            if self._plan.others:
                self._beside = FallbackForm(masters.part(optimizer, self._plan.others))
                self._masters_in_step = functools.partial(masters.fixed, of=self._plan.others)
        self.changes = Changes(optimizer, masters, self._plan.entries)

    def renew_plan(self):
        """Must be called when states have been loaded: different numbers in them may split a group."""
        self.changes = None

    def _preconditioned(self):
        """Writes preconditioned gradients into masters; returns the ids of their parameters.

        Values that are not finite remain so, and the check finds them.
        """
        inverses = {}
        return self._preconditioner.run(
            self._masters.pairs(), self._optimizer, functools.partial(unscale_into_master, inverses=inverses)
        )

    def _zero(self, params, gradients):
        for param, gradient in zip(params, gradients, strict=True):
            if gradient is not None:
                if id(param) in self._form.zeroed:
                    pass
                elif getattr(gradient.flags, "writeable", True):  # CuPy has no such flag
                    gradient[...] = 0
                else:
                    param.grad = param.xp.zeros_like(param.array)
                param._loss_scale = ZERO

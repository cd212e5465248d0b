"""A step in which the batched update takes part."""

import logging
import math
import operator
import weakref

import numpy as np

from mixprec.backends import launcher_of
from mixprec.backends.memory import in_order_of, is_dense, same_order
from mixprec.backends.transfers import on_host, to_host
from mixprec.loss_scale import DynamicLossScale, NoLossScale
from mixprec.optimizer import gradients
from mixprec.optimizer.batch.device_batch import DeviceBatch, Scaling
from mixprec.optimizer.batch.host_batch import HostBatch
from mixprec.optimizer.batch.plan import ONE_BY_ONE, plan
from mixprec.optimizer.changes import Changes
from mixprec.optimizer.rollback import update_unless
from mixprec.optimizer.scaled_loss import MIXED, NOT_REACHED, ZERO, Used, factor_of, is_one, only_note, scale_of, use

_LOGGER = logging.getLogger("mixprec")
# What a step of the loss scale on a device knows beside its state.
SCALE_CONSTANTS = ("growth", "backoff", "floor", "cap", "interval", "hysteresis")
_SIZE = operator.attrgetter("size")
# Update rules that compute with `t` -> the Batched whose device counts their steps.
_COUNTED_BY = weakref.WeakKeyDictionary()


class Batched:
    """Runs steps of an optimizer, most parameters in a batch and the others as Chainer does, one by one.

    Args:
        optimizer: Chainer's optimizer, set up on ``masters``.
        masters: :class:`~mixprec.optimizer.masters.Masters`.
        batched: whether there may be a batch at all.
        zero_gradients: whether to leave zeros in the gradients.
    """

    def __init__(self, optimizer, masters, *, batched, zero_gradients):
        self._optimizer = optimizer
        self._masters = masters
        self._wanted = batched
        self._zero_gradients = zero_gradients
        self._announced = set()
        self._changes = None
        self._plan = None
        self._batch = None
        self._part = None  # the optimizer of the parameters that are not in the batch
        self._launcher = None
        self._seed = None  # of the noise on a device
        self._unsettled = False
        self._shares_rules = False  # with another optimizer, to which the steps must be known at once
        self._zeroed = ()  # ids of the parameters whose gradients the kernel sets to zero

    @property
    def plan(self):
        """The :class:`~mixprec.optimizer.batch.plan.Plan` as things are now."""
        self._look()
        return self._plan

    @property
    def batch(self):
        """What updates the batch, a :class:`DeviceBatch` on a device; another one when the plan has changed."""
        return self._batch

    @property
    def changes(self):
        """What sees changes since the plan was made, another one for each plan."""
        return self._changes

    @property
    def shares_rules(self):
        """Whether another optimizer has the same update rules, whose ``t`` it must know at once."""
        return self._shares_rules

    def unchanged(self):
        """Whether all is as it was when the plan was made; to be asked between steps."""
        return self._changes.none()

    def before_launch(self):
        """To be called before a graph runs a step."""
        if self._batch.must_settle:
            self.settle()
        self._batch.follow_bases()

    def after_launch(self):
        """To be called when a graph has been asked to run a step."""
        self._unsettled = True
        self._changes.expect()

    def _look(self):
        if self._changes is None or not self._changes.none():
            self._make()

    def step(self, scaler, steps, statistics):
        """Updates the parameters from the gradients of the model, unless one of them is not finite.

        Args:
            scaler: the loss scale, which advances.
            steps: :class:`~mixprec.optimizer.steps.Steps`, which count the step.
            statistics: :class:`~mixprec.optimizer.statistics.Statistics`, which a skipped step brings back.

        Returns:
            Whether the step is skipped: a boolean array of shape (), valid until the next step.
        """
        self._look()
        self._changes.look()
        plan = self._plan
        params, notes, arrays = self._changes.params, self._changes.notes, self._changes.gradients
        note = only_note(notes) if notes else NOT_REACHED
        if note is MIXED or note is None:
            scales = not isinstance(scaler, NoLossScale)
            gradients.check_scaled(self._masters.structure.namedparams, notes, scales=scales)
        if isinstance(self._batch, DeviceBatch):
            skipped = self._step_on_device(note, scaler, steps, statistics)
        else:
            skipped = self._step_on_host(note, steps) if plan.entries else self._step_one_by_one(steps)
            statistics.undo(skipped)
            steps.advance(skipped)
            scaler.adjust(skipped)
        if self._zero_gradients:
            self._zero(params, arrays)
        elif note is not NOT_REACHED:
            use(params, notes, arrays)
        self._changes.expect()
        return skipped

    def _step_one_by_one(self, steps):
        with self._masters.fixed():
            return update_unless(gradients.gather(self._masters.pairs()), self._optimizer, steps)

    def _step_on_host(self, note, steps):
        plan, batch = self._plan, self._batch
        batch.follow()
        if plan.before:
            skipped = self._run_hooks_before()
        else:
            batch.load(self._gradients(), self._inverses(note))
            skipped = not batch.is_finite()
        if plan.others:
            if not skipped:
                batch.numbers()  # nothing has moved yet, should a hyperparameter be refused
            skipped = self._update_others(skipped, steps)
        steps.settle()
        if not skipped:
            batch.update()
            self._optimizer.t += 1
            for rule in plan.waiting:
                rule.t += 1
        return np.bool_(skipped)

    def _step_on_device(self, note, scaler, steps, statistics):
        if note is MIXED or isinstance(note, Used):
            factors = [_factor_of(param) for param in self._params]
        else:
            factors = [None if is_one(factor_of(note)) else factor_of(note)] * len(self._params)
        if self._batch.must_settle:
            self.settle()
        moved = [pair for pair in statistics.moved() if all(map(self._launcher.holds, pair))]
        skipped = self._batch.check(factors, moved)
        others = self._update_others(skipped, steps) if self._plan.others else None
        counters = steps.held_by(self._hold)
        scaling = None
        if isinstance(scaler, DynamicLossScale):
            constants = {name: getattr(scaler, name) for name in SCALE_CONSTANTS}
            scaling = Scaling(*scaler.held_by(self._hold), **constants)
        self._zeroed = set(map(id, self._params)) if self._zero_gradients and not self._share_gradients() else ()
        self._batch.update(others, scaling, counters, bool(self._zeroed))
        self._unsettled = True
        statistics.undo(counters[1], but=moved)
        if self._shares_rules:
            self.settle()
        return counters[1]

    def _share_gradients(self):
        """Whether two parameters have one gradient (``a + b``): zeros for one would come too early for the other."""
        arrays = [param.grad for param in self._params]
        addresses = [self._launcher.address(array) for array in arrays if array is not None and array.size]
        return len(set(addresses)) < len(addresses)

    def _zero(self, params, arrays):
        for param, array in zip(params, arrays, strict=True):
            if array is not None:
                if id(param) in self._zeroed:
                    pass
                elif getattr(array.flags, "writeable", True):  # CuPy has no such flag
                    array[...] = 0
                else:
                    param.grad = param.xp.zeros_like(param.array)
                param._loss_scale = ZERO

    def settle(self):
        """Counts the steps that were not skipped in ``t``, with one read if steps on a device are outstanding."""
        if not self._unsettled:
            return
        self._unsettled = False
        applied = self._batch.settle()
        self._optimizer.t += applied
        for rule in self._plan.waiting:
            rule.t += applied
        self._changes.expect()

    def _hold(self, state):
        """Returns an array of shape () on the device of the batch, itself if it is there."""
        return self._launcher.full((), state.item(), state.dtype) if on_host(state) else state

    def _run_hooks_before(self):
        """Runs the hooks of the optimizer in Chainer's own code on the masters; returns whether to skip the step."""
        optimizer, masters, entries = self._optimizer, self._masters, self._plan.entries
        with masters.fixed(of=()):
            if gradients.gather(masters.pairs()):
                return True
            with np.errstate(over="ignore", invalid="ignore"):
                optimizer.reallocate_cleared_grads()
                optimizer.call_hooks("pre")
            if gradients.not_finite(optimizer):
                return True
        self._batch.load(tuple(entry.master.grad for entry in entries), 1.0)
        return any(entry.hooks for entry in entries) and not self._batch.is_finite(updated_only=True)

    def _update_others(self, skipped, steps):
        with self._masters.fixed(of=self._plan.others):
            return update_unless(skipped | gradients.gather(self._part.target.pairs()), self._part, steps)

    def _make(self):
        self.settle()
        optimizer, masters = self._optimizer, self._masters
        self._batch = None
        namedparams = masters.all_current()
        self._zeroed = ()
        self._changes = None  # should this fail, the next step makes it again
        self._launcher = next(
            (launcher_of(param.array) for _, param, _ in namedparams if param.array is not None), None
        )
        self._plan = plan(optimizer, namedparams, self._wanted, on_device=self._launcher is not None)
        self._announce()
        entries = self._plan.entries
        self._params = [entry.param for entry in entries]
        self._sizes = [param.size for param in self._params]
        self._shapes_are_checked = False
        if entries:
            for _, param, master in namedparams:
                # Also if the first step is going to be skipped, so that it leaves what Chainer begins with.
                if param.array is not None and param.update_rule is not None and param.update_rule.enabled:
                    param.update_rule._init_states(master)
            for entry in entries:
                _lay_states(entry)
            self._batch = HostBatch(entries) if self._launcher is None else self._device_batch(entries)
        self._part = masters.part(optimizer, self._plan.others)
        self._changes = Changes(optimizer, masters, entries)
        number = {id(param): number for number, param in enumerate(self._changes.params)}
        self._members = [number[id(param)] for param in self._params]
        self._are_all = self._members == list(range(len(number)))

    def _announce(self):
        """Tells once, by name, who is not in the batch."""
        others = [name for name, reason in self._plan.reasons.items() if reason.startswith(ONE_BY_ONE)]
        if self._wanted and others:
            reason = self._plan.reasons[others[0]]
            if reason not in self._announced:
                self._announced.add(reason)
                _LOGGER.warning(
                    "%d of %d parameters are not in the batched update, %s %s; optimizer.report() lists all",
                    *(len(others), len(self._plan.reasons), others[0], reason),
                )

    def _device_batch(self, entries):
        for rule in [entry.rule for entry in entries if entry.rule and _counts(entry.expression)]:
            other = _COUNTED_BY.get(rule, lambda: None)()
            if other is not None and other is not self:
                other.settle()
                other._shares_rules = self._shares_rules = True
            _COUNTED_BY[rule] = weakref.ref(self)
        noisy = any(folded.fold.noise for entry in entries for folded in entry.hooks)
        if noisy and self._seed is None:
            self._seed = int(np.random.randint(1 << 31))
        return DeviceBatch(entries, self._launcher, self._seed or 0)

    def _gradients(self):
        """Returns the gradient of each entry, zeros if it has none."""
        arrays = self._changes.gradients
        if not self._are_all:
            arrays = [arrays[member] for member in self._members]
        try:
            sizes = list(map(_SIZE, arrays))
        except AttributeError:  # None has no size
            arrays = [
                np.zeros_like(param.array) if array is None else array
                for param, array in zip(self._params, arrays, strict=True)
            ]
            sizes = list(map(_SIZE, arrays))
        # Chainer takes a gradient of the parameter's shape only. Another one is from before the parameter was replaced.
        if not self._shapes_are_checked or sizes != self._sizes:
            for entry, array in zip(self._plan.entries, arrays, strict=True):
                gradients.check_shape(entry.name, entry.param, array)
            self._shapes_are_checked = True
        return arrays

    def _inverses(self, note):
        """Returns what unscales the gradients, 1 / their loss scale: a float, or one for each entry if they differ."""
        if note is not MIXED and not isinstance(note, Used):
            return _inverse_of(factor_of(note))
        factors = [_factor_of(param) for param in self._params]
        inverses = {id(factor): _inverse_of(factor) for factor in {id(factor): factor for factor in factors}.values()}
        return [inverses[id(factor)] for factor in factors]


def _lay_states(entry):
    """Brings the states of a rule into the order of its parameter in memory: a file gives them in C order."""
    master = entry.master.array
    for name in entry.expression.states if entry.rule is not None else ():
        state = entry.rule.state[name]
        if state.shape == master.shape and not (is_dense(state) and same_order(state, master)):
            entry.rule.state[name] = in_order_of(state, master)


def _counts(expression):
    return expression.counts or expression.powers


def _factor_of(param):
    factor = scale_of(param)
    return None if is_one(factor) or factor is MIXED else factor  # MIXED: one without a gradient, or it were refused


def _inverse_of(factor):
    number = 1.0 if factor is None else float(to_host(factor))
    return 1 / number if number else math.inf  # a scale without a floor may have come down to 0

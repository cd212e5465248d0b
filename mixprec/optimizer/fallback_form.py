"""Chainer's own loop over parameters: for parameters that cannot be batched, and with ``batched=False``.

Whether a step counts may be known only after Chainer's update has run: a hook can produce inf, and on a GPU the host
never looks. So everything that hooks and update rules may change is saved before the update, and restored in place if
the step is skipped; on a device by a selection there. Chainer's update rules count steps on the host; the count is
corrected when ``t`` is read (:meth:`FallbackForm.settle`).
"""

import chainer
import numpy as np
from chainer import backend

from mixprec.backends.transfers import on_host, to_host
from mixprec.optimizer.batch.saved_arrays import restore
from mixprec.optimizer.gradients import gather, not_finite
from mixprec.optimizer.rules.formulas import may_count
from mixprec.optimizer.update_form import UpdateForm

# GradientClipping divides by a norm of 0, MSVAG 0 by 0.
_IGNORED = {"over": "ignore", "invalid": "ignore", "divide": "ignore"}


class FallbackForm(UpdateForm):
    """Checks gradients, then runs the update of Chainer's optimizer.

    Args:
        optimizer: Chainer's optimizer, whose target is :class:`~mixprec.optimizer.masters.Masters` or a part of them.
            They are fixed during a step (:meth:`~mixprec.optimizer.masters.Masters.fixed`).
        previous: the form that this one replaces, or ``None``. If both count the same steps, its count continues
            without a read from the device.
    """

    def __init__(self, optimizer, previous=None):
        self._optimizer = optimizer
        self._has_hooks = _has_hooks(optimizer)
        self._counting = _owners_of_t(optimizer)
        self._counter = self._since = None  # the StepCounter, and its number of skipped steps that `t` knows of
        if previous is not None and previous._counter is not None:
            if self._counting is not None and list(map(id, self._counting)) == list(map(id, previous._counting)):
                self._counter, self._since = previous._counter, previous._since
            else:
                previous.settle()

    def check(self, scale=None, gradients=(), statistics=None, done=()):
        """See :class:`~mixprec.optimizer.update_form.UpdateForm`; gradients and scales are read from the parameters."""
        return gather(self._optimizer.target.pairs(), done)

    def update(self, skip, scaler, counter):
        """See :class:`~mixprec.optimizer.update_form.UpdateForm`.

        If there are hooks, and a hook or a rule raises, their changes are undone, too.
        """
        later = self._counting is not None and not on_host(skip)
        if not later:
            self.settle()  # this step is counted on the host at once
        if on_host(skip):
            if skip:
                return skip
            if not self._has_hooks:
                with np.errstate(**_IGNORED):
                    self._optimizer.update()
                return skip
        kept = _Kept(self._optimizer, initialize=later)
        try:
            with np.errstate(**_IGNORED):
                self._optimizer.update()
                if self._has_hooks:
                    skip = skip | not_finite(self._optimizer)
        except BaseException:
            kept.undo()
            raise
        if later:
            kept.undo_arrays(skip)
            if self._counter is None:
                self._counter, self._since = counter, counter.arrays[0].copy()
        elif to_host(skip):
            kept.undo()
        return skip

    def settle(self):
        """See :class:`~mixprec.optimizer.update_form.UpdateForm`."""
        if self._counter is None:
            return False
        now = self._counter.arrays[0]
        skipped = int(to_host(now - backend.get_device_from_array(now).send(self._since)))
        for owner in self._counting:
            owner.t -= skipped
        self._counter = self._since = None
        return True


class _Kept:
    """A copy of everything that an update may change: masters, the states of their rules, other arrays and numbers.

    Args:
        optimizer: as for :class:`FallbackForm`.
        initialize: whether to initialize the state of rules that have none yet, as their first update would.
            :meth:`undo_arrays` needs this, because it cannot restore "no state".
    """

    def __init__(self, optimizer, *, initialize):
        self._masters = []
        self._states = []
        self._attributes = [_Saved(vars(optimizer))]
        for _, _, master in optimizer.target.pairs():
            self._masters.append((master, master.array, master.array.copy(order="K")))
            rule = master.update_rule
            if rule is None:
                continue
            if initialize and rule.enabled:
                rule._init_states(master)
            self._states.append((rule, None if rule.state is None else _Saved(rule.state)))
            self._attributes.append(_Saved(vars(rule)))

    def undo(self):
        """Undoes the update."""
        for master, array, before in self._masters:
            array[...] = before
            master.array = array
        for attributes in self._attributes:
            attributes.restore()
        for _, state in self._states:
            if state is not None:
                state.restore()

    def undo_arrays(self, skip):
        """Restores masters and states if ``skip``, a boolean array that is not read, is true.

        The numbers on the host stay as they are after the update.
        """
        for master, array, before in self._masters:
            restore(array, before, skip, now=master.array)
            master.array = array
        for rule, state in self._states:
            for name, (value, before) in ({} if state is None else state.values).items():
                if value is not before:
                    restore(value, before, skip, now=rule.state[name])
                    rule.state[name] = value


class _Saved:
    """A snapshot of a dict: its items, with copies of the arrays."""

    def __init__(self, values):
        self._dict = values
        self.values = {name: (value, _copy(value)) for name, value in values.items()}

    def restore(self):
        """Restores the dict; its arrays in place."""
        self._dict.clear()
        for name, (value, before) in self.values.items():
            if value is not before:
                value[...] = before
            self._dict[name] = value


def _copy(value):
    return value.copy(order="K") if isinstance(value, chainer.get_array_types()) else value


def _owners_of_t(optimizer):
    """Returns the optimizer and the update rules that take part in an update, whose ``t`` can be corrected later.

    Returns:
        A tuple; ``None`` if an update changes any other number on the host, or if a rule computes with ``t``.
    """
    if len(list(optimizer.target.params(include_uninit=False))) > len(list(optimizer.target.pairs())):
        return None  # a shared parameter: Chainer updates and counts it once for each occurrence
    owners, hooks = [], list(_hooks(optimizer))
    for _, _, master in optimizer.target.pairs():
        rule = master.update_rule
        if rule is not None and rule.enabled:
            if may_count(type(rule)):
                return None
            owners.append(rule)
            hooks.extend(_hooks(rule))
    return None if any(may_count(type(hook)) for hook in hooks) else (optimizer, *owners)


def _has_hooks(optimizer):
    """Whether an update of ``optimizer`` runs any hook."""
    rules = (master.update_rule for _, _, master in optimizer.target.pairs())
    return any(_hooks(owner) for owner in (optimizer, *rules) if owner is not None)


def _hooks(owner):
    hookable = owner._hookable
    return [*hookable._pre_update_hooks.values(), *hookable._post_update_hooks.values()]

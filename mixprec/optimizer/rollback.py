"""Taking an update back: everything that hooks and update rules may have moved.

Whether a step counts may be known only when its update has run: a hook can bring inf in, and on a GPU the host never
looks. Arrays are then taken back by a selection on their device. Chainer's update rules count steps on the host, which
is corrected when somebody asks (:class:`mixprec.optimizer.steps.Steps`).
"""

import chainer
import numpy as np

from mixprec.backends.reading import known, read
from mixprec.optimizer.gradients import not_finite
from mixprec.optimizer.steps import counts_only, has_hooks


def update_unless(skipped, optimizer, steps):
    """Runs hooks and update rules, and takes back what they did if the step is skipped after all.

    Args:
        skipped: whether a gradient is not finite: a boolean array of shape ().
        optimizer: the wrapped optimizer, whose target is :class:`~mixprec.optimizer.masters.Masters`.
        steps: :class:`~mixprec.optimizer.steps.Steps`, which corrects ``t`` later if that can wait.

    Returns:
        Whether the step is skipped, as hooks may have brought inf or NaN in: likewise.
    """
    owners = None if known(skipped) else counts_only(optimizer)
    if owners is None:
        steps.settle()  # this step is going to be counted at once
    if known(skipped) and skipped:
        return skipped
    hooks = has_hooks(optimizer)
    if known(skipped) and not hooks:
        optimizer.update()
        return skipped
    rollback = Rollback(optimizer, initialize=not known(skipped))
    with np.errstate(over="ignore", invalid="ignore"):
        optimizer.update()
        if hooks:
            skipped = skipped | not_finite(optimizer.target)
    rollback.undo(skipped)
    if owners is not None:
        steps.count_later(owners)
    elif not known(skipped) and read(skipped):
        rollback.undo_numbers()
    return skipped


class Rollback:
    """A copy of the masters, of the state of their update rules, and of the numbers that rules keep on the host.

    Args:
        optimizer: the wrapped optimizer, whose target is :class:`~mixprec.optimizer.masters.Masters`.
        initialize: whether to initialize the state of rules that have none yet, as their first update would. Needed
            where the selection is made on a device, which cannot bring back "no state".
    """

    def __init__(self, optimizer, *, initialize):
        self._arrays = []
        self._states = []
        self._numbers = [(optimizer, host_numbers(optimizer))]
        for _, _, master in optimizer.target.pairs():
            self._arrays.append((master.array, master.array.copy()))
            rule = master.update_rule
            if rule is None:
                continue
            self._numbers.append((rule, host_numbers(rule)))
            if initialize and rule.enabled:
                rule._init_states(master)
            state = None if rule.state is None else {name: (value, _copy(value)) for name, value in rule.state.items()}
            self._states.append((rule, state))

    def undo(self, skipped):
        """Takes the update back if ``skipped``, a bool or a boolean array of shape () that is not read.

        In the second case the numbers on the host stay as they are after the update; :meth:`undo_numbers` is for them.
        """
        if known(skipped):
            if skipped:
                self._undo()
                self.undo_numbers()
            return
        for array, before in self._arrays:
            _select(array, before, skipped)
        for rule, state in self._states:
            for name, (_, before) in (state or {}).items():
                _select(rule.state[name], before, skipped)

    def undo_numbers(self):
        """Brings back the numbers on the host."""
        for owner, numbers in self._numbers:
            vars(owner).update(numbers)

    def _undo(self):
        for array, before in self._arrays:
            array[...] = before
        for rule, state in self._states:
            if state is None:
                rule._state = None
                continue
            rule._state = {name: value for name, (value, _) in state.items()}
            for value, before in state.values():
                if isinstance(value, chainer.get_array_types()):
                    value[...] = before


def host_numbers(owner):
    """Returns the numbers among the attributes of an optimizer or update rule, such as ``t``, by name."""
    return {name: value for name, value in vars(owner).items() if type(value) in (int, float)}


def _copy(value):
    return value.copy() if isinstance(value, chainer.get_array_types()) else value


def _select(now, before, skipped):
    if isinstance(now, chainer.get_array_types()):
        device = chainer.backend.get_device_from_array(now)
        now[...] = device.xp.where(device.send(skipped), device.send(before), now)

"""Taking an update back: everything that hooks and update rules may have moved.

Whether a step counts may be known only when its update has run: a hook can bring inf in, and on a GPU the host never
looks. Arrays are then taken back by a selection on their device. Chainer's update rules count steps on the host, which
is corrected when somebody asks (:class:`mixprec.optimizer.steps.Steps`).
"""

import chainer
import numpy as np

from mixprec.backends.transfers import on_host, to_host
from mixprec.optimizer.gradients import not_finite
from mixprec.optimizer.steps import counts_only, has_hooks


def update_unless(skipped, optimizer, steps):
    """Runs hooks and update rules, and takes back what they did if the step is skipped after all.

    If there are hooks, and one of them or a rule raises, that is taken back, too.

    Args:
        skipped: whether a gradient is not finite: a boolean array of shape ().
        optimizer: the wrapped optimizer, whose target is :class:`~mixprec.optimizer.masters.Masters`.
        steps: :class:`~mixprec.optimizer.steps.Steps`, which corrects ``t`` later if that can wait.

    Returns:
        Whether the step is skipped, as hooks may have brought inf or NaN in: likewise.
    """
    owners = None if on_host(skipped) else counts_only(optimizer)
    if owners is None:
        steps.settle()  # this step is going to be counted at once
    if on_host(skipped) and skipped:
        return skipped
    hooks = has_hooks(optimizer)
    if on_host(skipped) and not hooks:
        optimizer.update()
        return skipped
    rollback = Rollback(optimizer, initialize=owners is not None)
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            optimizer.update()
            if hooks:
                skipped = skipped | not_finite(optimizer)
    except BaseException:
        rollback.undo()
        raise
    if owners is not None:
        rollback.select(skipped)
        steps.count_later(owners)
    elif to_host(skipped):
        rollback.undo()
    return skipped


class Rollback:
    """What an update may move: the masters; the state of their update rules, and arrays and numbers beside it.

    Args:
        optimizer: the wrapped optimizer, whose target is :class:`~mixprec.optimizer.masters.Masters`.
        initialize: whether to initialize the state of rules that have none yet, as their first update would.
            :meth:`select` needs that, as it cannot bring back "no state".
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
        """Takes the update back."""
        for master, array, before in self._masters:
            array[...] = before
            master.array = array
        for attributes in self._attributes:
            attributes.restore()
        for _, state in self._states:
            if state is not None:
                state.restore()

    def select(self, skipped):
        """Takes back what the update did to masters and states if ``skipped``, a boolean array that is not read.

        The numbers on the host stay as they are after the update.
        """
        for master, array, before in self._masters:
            _select(master.array, before, skipped, out=array)
            master.array = array
        for rule, state in self._states:
            for name, (value, before) in ({} if state is None else state.values).items():
                if value is not before:
                    _select(rule.state[name], before, skipped, out=value)
                    rule.state[name] = value


class _Saved:
    """A dict as it is: what is in it, and copies of the arrays."""

    def __init__(self, values):
        self._dict = values
        self.values = {name: (value, _copy(value)) for name, value in values.items()}

    def restore(self):
        """Brings the dict back, its arrays in place."""
        self._dict.clear()
        for name, (value, before) in self.values.items():
            if value is not before:
                value[...] = before
            self._dict[name] = value


def _copy(value):
    return value.copy(order="K") if isinstance(value, chainer.get_array_types()) else value


def _select(now, before, skipped, out):
    device = chainer.backend.get_device_from_array(out)
    out[...] = device.xp.where(device.send(skipped), device.send(before), device.send(now))

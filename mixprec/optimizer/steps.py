"""The steps of a run: how many were skipped, and what that means for the counters that Chainer keeps on the host."""

import numpy as np
from chainer import Deserializer, backend, get_array_types, optimizer_hooks
from chainer.optimizers import (
    ada_delta,
    ada_grad,
    corrected_momentum_sgd,
    momentum_sgd,
    nesterov_ag,
    rmsprop,
    rmsprop_graves,
    sgd,
    smorms3,
)

from mixprec.backends.transfers import on_host, to_host
from mixprec.loss_scale import stored
from mixprec.optimizer.no_decay import DecayOfSome
from mixprec.optimizer.rules.lars import LARSRule

# Update rules and hooks that compute with arrays and hyperparameters only. All others are taken to compute with `t` or
# with numbers of their own (the bias correction of Adam and MSVAG, the annealed GradientNoise, whatever users write).
_ARRAYS_ONLY = {
    ada_delta.AdaDeltaRule,
    ada_grad.AdaGradRule,
    corrected_momentum_sgd.CorrectedMomentumSGDRule,
    momentum_sgd.MomentumSGDRule,
    nesterov_ag.NesterovAGRule,
    rmsprop.RMSpropRule,
    rmsprop_graves.RMSpropGravesRule,
    sgd.SGDRule,
    smorms3.SMORMS3Rule,
    DecayOfSome,
    LARSRule,
    optimizer_hooks.GradientClipping,
    optimizer_hooks.GradientHardClipping,
    optimizer_hooks.GradientLARS,
    optimizer_hooks.Lasso,
    optimizer_hooks.WeightDecay,
}


class Steps:
    """Counts skipped steps where the gradients are, and ``t`` of optimizer and rules in arrears if that is a GPU."""

    def __init__(self):
        self._skipped = np.array(0, np.int64)
        self._last_skipped = np.array(False)
        self._owners = ()  # whose `t` does not know yet which steps since `_since` were skipped
        self._since = None

    @property
    def skipped(self):
        """Number of steps skipped so far; read from the device if it is there."""
        return int(to_host(self._skipped))

    @property
    def last_skipped(self):
        """Whether the last step was skipped; read from the device if it is there."""
        return bool(to_host(self._last_skipped))

    def advance(self, skipped):
        """Counts a step.

        Args:
            skipped: a boolean array of shape (), on any device; it is not read.
        """
        if on_host(skipped) and on_host(self._skipped):
            self._last_skipped = np.array(bool(skipped))
            if skipped:
                self._skipped = np.array(self._skipped + 1, np.int64)
            return
        if not isinstance(skipped, get_array_types()):
            skipped = backend.get_array_module(self._skipped).asarray(skipped)
        self._last_skipped = skipped
        self._skipped = backend.get_device_from_array(skipped).send(self._skipped) + skipped

    def held_by(self, hold):
        """Lets somebody else count, in place: the batched update on a device.

        Args:
            hold: puts an array of shape () where it is needed.

        Returns:
            The number of skipped steps (int64), and whether the last one was (bool), arrays of shape ().
        """
        self._skipped, self._last_skipped = map(hold, self.arrays)
        return self.arrays

    @property
    def arrays(self):
        """The number of skipped steps, and whether the last one was."""
        return self._skipped, self._last_skipped

    def count_later(self, owners):
        """Takes it on to correct ``t`` of ``owners``, which have all counted the step that comes with ``advance``."""
        if self._owners != owners:
            self.settle()
            self._owners, self._since = owners, self._skipped.copy()

    def settle(self):
        """Corrects the counters, with one read if steps on a device are outstanding."""
        if not self._owners:
            return
        device = backend.get_device_from_array(self._skipped)
        skipped = int(to_host(self._skipped - device.send(self._since)))
        for owner in self._owners:
            owner.t -= skipped
        self._owners, self._since = (), None

    def serialize(self, serializer):
        """Saves or loads the count and the last outcome; call :meth:`settle` before."""
        skipped = int(stored(serializer, "skipped", self._skipped))
        last_skipped = bool(stored(serializer, "last_step_skipped", self._last_skipped))
        if isinstance(serializer, Deserializer):  # what is saved stays where it is: a graph may hold it
            self._skipped, self._last_skipped = np.array(skipped, np.int64), np.array(last_skipped)


def skip_flag(optimizer):
    """Returns whether the last step of a :class:`~mixprec.MixedPrecisionOptimizer` was skipped, without a read.

    Returns:
        A boolean array of shape () where the step was computed. On a device the next step may write into it.
    """
    return optimizer._steps.arrays[1]


def counts_only(optimizer):
    """Whether ``t`` is the only number on the host that an update of ``optimizer`` moves, and nobody computes with it.

    Returns:
        The optimizer and the update rules that take part in an update, or ``None``.
    """
    if len(list(optimizer.target.params(include_uninit=False))) > len(list(optimizer.target.pairs())):
        return None  # a shared parameter: Chainer updates it, and counts, as often as it occurs
    owners, hooks = [], list(_hooks(optimizer))
    for _, _, master in optimizer.target.pairs():
        rule = master.update_rule
        if rule is not None and rule.enabled:
            if type(rule) not in _ARRAYS_ONLY:
                return None
            owners.append(rule)
            hooks.extend(_hooks(rule))
    if any(type(hook) not in _ARRAYS_ONLY for hook in hooks):
        return None
    return (optimizer, *owners)


def has_hooks(optimizer):
    """Whether an update of ``optimizer`` runs any hook."""
    rules = (master.update_rule for _, _, master in optimizer.target.pairs())
    return any(_hooks(owner) for owner in (optimizer, *rules) if owner is not None)


def _hooks(owner):
    hookable = owner._hookable
    return [*hookable._pre_update_hooks.values(), *hookable._post_update_hooks.values()]

"""A step on a device: the kernels ``check`` and ``update``, in two launches for all parameters, with nothing read."""

import weakref

from mixprec.backends.transfers import on_host
from mixprec.optimizer.batch.device_batch import DeviceBatch
from mixprec.optimizer.update_form import UpdateForm
from mixprec.precision.grad_scales import MIXED, UsedScale, factor_of, factor_to_unscale, is_one

# Update rules that compute with `t` -> the OptimizerStep whose device counts their steps.
_COUNTED_BY = weakref.WeakKeyDictionary()


class DeviceForm(UpdateForm):
    """Updates all parameters on a device together; the loss scale and the step counters advance there, too.

    Args:
        step: the :class:`~mixprec.optimizer.step.OptimizerStep`.
        optimizer: Chainer's optimizer.
        plan: :class:`~mixprec.optimizer.batch.update_plan.UpdatePlan` with entries on one device.
        launcher: :class:`~mixprec.backends.launch.CupyLauncher` of that device.
        zero_gradients: whether to leave zeros in the gradients.
    """

    moves_counters = True

    def __init__(self, step, optimizer, plan, launcher, zero_gradients):
        self._optimizer, self._plan, self._launcher = optimizer, plan, launcher
        self._zero_gradients = zero_gradients
        self._params = [entry.param for entry in plan.entries]
        self._unsettled = False
        self._skip = None
        for rule in [entry.rule for entry in plan.entries if entry.rule and entry.formula.moves]:
            other = _COUNTED_BY.get(rule, lambda: None)()
            if other is not None and other is not step:
                other.settle()
                other.shares_rules = step.shares_rules = True
            _COUNTED_BY[rule] = weakref.ref(step)
        noisy = any(hook.formula.noise for entry in plan.entries for hook in entry.hooks)
        self.batch = DeviceBatch(plan.entries, launcher, step.seed_of_noise() if noisy else 0)

    def check(self, scale, gradients, statistics, done):
        """See :class:`~mixprec.optimizer.update_form.UpdateForm`; hooks run in the same launches."""
        if scale is MIXED or isinstance(scale, UsedScale):
            factors = list(map(factor_to_unscale, self._params))
        else:
            factor = factor_of(scale)
            factors = [None if is_one(factor) else factor] * len(self._params)
        if self.batch.must_settle:
            self.settle()
        self.restored = [pair for pair in statistics.moved() if all(map(self._launcher.holds, pair))]
        if done:
            factors = [None if id(param) in done else f for param, f in zip(self._params, factors, strict=True)]
        self._skip = self.batch.check(factors, self.restored, done)
        return self._skip

    def update(self, skip, scaler, counter):
        """See :class:`~mixprec.optimizer.update_form.UpdateForm`."""
        counter.held_by(self._hold)
        scaler.held_by(self._hold)
        zeroes = self._zero_gradients and not self._share_gradients()
        self.zeroed = set(map(id, self._params)) if zeroes else ()
        self.batch.update(None if skip is self._skip else skip, scaler, counter, zeroes)
        self._unsettled = True
        return counter.arrays[1]

    def forget(self):
        """See :class:`~mixprec.optimizer.update_form.UpdateForm`."""
        self.batch.forget()

    def settle(self):
        """See :class:`~mixprec.optimizer.update_form.UpdateForm`."""
        if not self._unsettled:
            return False
        applied = self.batch.settle()  # an error while a graph captures
        self._unsettled = False
        self._optimizer.t += applied
        for rule in self._plan.waiting:
            rule.t += applied
        return True

    def after_launch(self):
        """Must be called after a graph that runs a step was launched."""
        self._unsettled = True

    def _hold(self, state):
        """Returns an array of shape () on the device of the batch: ``state`` itself if it is there already."""
        is_here = not on_host(state) and self._launcher.holds(state)
        return state if is_here else self._launcher.full((), state.item(), state.dtype)

    def _share_gradients(self):
        """Whether two parameters share a gradient array (``a + b``): zeroing it for one is too early for the other."""
        arrays = [param.grad for param in self._params]
        addresses = [self._launcher.address(array) for array in arrays if array is not None and array.size]
        return len(set(addresses)) < len(addresses)

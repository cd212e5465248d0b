"""The batched update of a device beside Chainer's own update on NumPy, step by step from the same state."""

import chainer
import numpy as np
from chainer import optimizer_hooks, optimizers

from mixprec.base.dtypes import BFLOAT16
from mixprec.optimizer.batch.device_batch import DeviceBatch
from mixprec.optimizer.batch.entries import BatchedHook, Entry
from mixprec.optimizer.batch.table import all_states
from mixprec.optimizer.rules.formulas import hook_formula_of, rule_formula_of
from mixprec.optimizer.rules.own_rules import OwnOptimizer
from tests.optimizer.batch.chainer_rules import OPTIMIZERS
from tests.stand_ins import update_pair
from tests.stand_ins.device_stand_in import DeviceArray

# As in the formulas of chainer_rules; only those that are in 5 significant bits do not depend on float32.
RULES = {name: (getattr(optimizers, name), settings) for name, (settings, _) in OPTIMIZERS.items()}
RULES["RMSprop, eps inside"] = (optimizers.RMSprop, {"lr": 0.1, "alpha": 0.75, "eps": 1e-2, "eps_inside_sqrt": True})
RULES |= {
    name: (kind, {"lr": 0.1, "weight_decay": 0.01, **{key: x for key, x in settings.items() if isinstance(x, bool)}})
    for name, (kind, settings) in update_pair.RULES.items()
    if issubclass(kind, OwnOptimizer)
}
WITH_NORMS = {"LARSRule", "LAMBRule"}  # the classes of update rules


def optimizer_of(name):
    cls, settings = RULES[name]
    return cls(**settings)


SIZES = (1, 7, 31, 4096 + 3)
HOOKS = {
    "none": [],
    "decay and clipping": [optimizer_hooks.WeightDecay(0.01), optimizer_hooks.GradientClipping(5.0)],
    "lasso and hard clipping": [optimizer_hooks.Lasso(0.01), optimizer_hooks.GradientHardClipping(-0.5, 0.5)],
    "lars and decay": [optimizer_hooks.GradientLARS(), optimizer_hooks.WeightDecay(0.01)],
}
SKIPPED = {0, 6, 11}
STEPS = 12


class Twin:
    """Parameters on the device and, as FP32 parameters of NumPy, in Chainer's hands.

    Args:
        launcher: of the device.
        send: makes an array of the device from one of NumPy.
        receive: the other way round.
        params: for each parameter ``(name of a rule or None, size or shape, dtype)``.
        hooks: of the optimizer.
        rule_hooks: of every update rule.
    """

    def __init__(self, launcher, send, receive, params, hooks=(), rule_hooks=(), seed=0):
        # One for each parameter, so that what is behind the others changes nothing for them.
        self.randoms = [np.random.RandomState([seed, place]) for place in range(len(params))]
        self.launcher, self.send, self.receive = launcher, send, receive
        self.optimizers = {name: optimizer_of(name) for name, *_ in params if name}
        self.link = chainer.Link()
        self.entries = []
        for place, (name, shape, dtype) in enumerate(params):
            array = self.randoms[place].normal(size=shape).astype(np.float32)
            with self.link.init_scope():
                setattr(self.link, f"p{place}", chainer.Parameter(array.copy()))
            master = chainer.Parameter(send(array))
            param = master if dtype == np.float32 else chainer.Parameter(send(array.astype(dtype)))
            rule = None
            if name:
                rule = self.optimizers[name].create_update_rule()
            own = tuple(BatchedHook(hook_formula_of(hook), hook, False) for hook in hooks)
            own += tuple(BatchedHook(hook_formula_of(hook), hook, True) for hook in rule_hooks if rule is not None)
            formula = None if rule is None else rule_formula_of(rule)
            self.entries.append(Entry(f"p{place}", param, master, rule, formula, own))
        self.reference = optimizers.SGD().setup(self.link)
        for hook in hooks:
            self.reference.add_hook(hook)
        for param, (name, *_) in zip(self._references(), params, strict=True):
            param.update_rule = self.optimizers[name].create_update_rule() if name else None
            for hook in rule_hooks if name else ():
                param.update_rule.add_hook(hook)
        self.batch = DeviceBatch(self.entries, launcher, seed=7)

    def _references(self):
        return [getattr(self.link, entry.name) for entry in self.entries]

    def gradients(self, scale=1.0, missing=()):
        """Random gradients on NumPy, as the backward pass of a loss times ``scale`` would leave them."""
        found = []
        for place, entry in enumerate(self.entries):
            gradient = (self.randoms[place].normal(size=entry.param.shape) * scale).astype(entry.param.dtype)
            found.append(None if place in missing else gradient)
        return found

    def set_gradients(self, gradients):
        for entry, gradient in zip(self.entries, gradients, strict=True):
            if gradient is None:
                entry.param.cleargrad()
            else:
                entry.param.grad = self.send(gradient)

    def masters(self):
        return [self.receive(entry.master.array).copy() for entry in self.entries]

    def copies(self):
        return [self.receive(entry.param.array).copy() for entry in self.entries]

    def states(self):
        """The states of the rules by name, in copies."""
        for entry in self.entries:
            if entry.rule is not None and entry.rule.state is None:
                entry.rule._init_states(entry.master)
        return [
            {} if entry.rule is None else {name: self.receive(entry.rule.state[name]).copy() for name in _names(entry)}
            for entry in self.entries
        ]

    def everything(self):
        """All arrays that a skipped step must leave alone."""
        states = [array for state in self.states() for array in state.values()]
        return [*self.masters(), *self.copies(), *states]

    def expect(self, gradients, inverse):
        """Runs Chainer's update from where the device is; returns masters and states after it."""
        states = zip(self._references(), self.entries, gradients, self.masters(), self.states(), strict=True)
        for param, entry, gradient, master, state in states:
            if entry.param is not entry.master:
                copy = self.receive(entry.param.array)
                written = copy.view(np.int16) != master.astype(copy.dtype).view(np.int16)
                master[written] = copy[written]
            param.array[...] = master
            param.grad = None if gradient is None else gradient.astype(np.float32) * np.float32(inverse)
            if param.update_rule is not None:
                param.update_rule._state = state
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            self.reference.update()
        states = [{} if p.update_rule is None else p.update_rule.state for p in self._references()]
        return [param.array for param in self._references()], states


def _names(entry):
    return all_states(entry.formula)


def ulps(found, expected, around):
    """The largest difference in units in the last place of the largest of ``found``, ``expected`` and ``around``."""
    largest = np.maximum(np.maximum(np.abs(found), np.abs(expected)), np.abs(around))
    return float(np.max(np.abs(found.astype(np.float64) - expected) / np.spacing(largest), initial=0))


def of_all_rules():
    params = []
    for place, name in enumerate(RULES):
        params.append((name, SIZES[place % 4], np.float16))
        params.append((name, SIZES[(place + 1) % 4], np.float32))
        params.append((name, SIZES[(place + 2) % 4], BFLOAT16))
    return params


def run(both, check_masters, steps=STEPS, skipped=SKIPPED):
    """Random steps, among them skipped ones, with missing gradients and with schedules."""
    factor = both.send(np.array(64, np.float32))
    for step in range(steps):
        for optimizer in both.optimizers.values():
            if step % 5 == 4:
                for name in ("lr", "alpha"):
                    if name in vars(optimizer.hyperparam) and not isinstance(optimizer, optimizers.RMSprop):
                        setattr(optimizer.hyperparam, name, getattr(optimizer.hyperparam, name) * 0.5)
        gradients = both.gradients(64, missing={step % 7})
        if step in skipped:
            place = (1 + step) % len(gradients)
            gradients[place] = np.full_like(both.gradients()[place], np.inf if step % 2 else np.nan)
        both.set_gradients(gradients)
        before, masters_before = both.everything(), both.masters()
        expected = None if step in skipped else both.expect(gradients, 1 / 64)
        reads = DeviceArray.reads
        skip = both.batch.check([factor] * len(gradients))
        both.batch.update()
        assert DeviceArray.reads == reads
        assert bool(both.receive(skip)) == (step in skipped)
        if step in skipped:
            for old, new in zip(before, both.everything(), strict=True):
                assert old.tobytes() == new.tobytes()
        else:
            for entry, master, copy in zip(both.entries, both.masters(), both.copies(), strict=True):
                if entry.param is not entry.master:
                    assert copy.tobytes() == master.astype(copy.dtype).tobytes(), entry.name
            check_masters(both, expected, masters_before)
    assert both.batch.settle() == steps - len(skipped)


def exactly(both, expected, before):
    """Bit for bit what Chainer has, but for rules that compute norms: NumPy sums up in another order and precision."""
    masters, states = both.masters(), both.states()
    for place, entry in enumerate(both.entries):
        where = f"{entry.name} {entry.rule}"
        if type(entry.rule).__name__ in WITH_NORMS:
            assert ulps(masters[place], expected[0][place], before[place]) <= _allowed(entry.rule), where
            continue
        np.testing.assert_array_equal(masters[place], expected[0][place], err_msg=where)
        for name, state in states[place].items():
            np.testing.assert_array_equal(state, expected[1][place][name], err_msg=f"{where} {name}")


def _allowed(rule):
    return 4 if type(rule).__name__ == "LAMBRule" else 2  # LAMB divides three times behind its norms


def closely(both, expected, before):
    """Within 4 units in the last place of the master or of the largest step in its parameter.

    Two rules subtract squares that are nearly equal, so that another rounding makes all the difference.
    """
    for entry, found, wanted, old in zip(both.entries, both.masters(), expected[0], before, strict=True):
        if type(entry.rule).__name__ in ("MSVAGRule", "RMSpropGravesRule"):
            continue
        scale = np.maximum(np.abs(old), np.max(np.abs(wanted - old)))
        assert ulps(found, wanted, scale) <= 4, f"{entry.name} {entry.rule}"

"""The batched update of a device beside Chainer's own update on NumPy, step by step from the same state."""

import chainer
import numpy as np
from chainer import optimizers
from chainer_rules import OPTIMIZERS

from mixprec.update.device import DeviceBatch
from mixprec.update.entries import Entry, FoldedHook
from mixprec.update.hooks import fold_of
from mixprec.update.rules import expression_of
from mixprec.update.rules.lamb import LAMB
from mixprec.update.rules.lars import LARS

# As in the formulas of chainer_rules; only those that are in 5 significant bits do not depend on float32.
RULES = {name: (getattr(optimizers, name), settings) for name, (settings, _) in OPTIMIZERS.items()}
RULES["RMSprop, eps inside"] = (optimizers.RMSprop, {"lr": 0.1, "alpha": 0.75, "eps": 1e-2, "eps_inside_sqrt": True})
RULES["LARS"] = (LARS, {"lr": 0.1, "weight_decay": 0.01})
RULES["LARS, not adapted"] = (LARS, {"lr": 0.1, "weight_decay": 0.01, "adapt": False})
RULES["LAMB"] = (LAMB, {"lr": 0.1, "weight_decay": 0.01})
RULES["LAMB, not adapted"] = (LAMB, {"lr": 0.1, "weight_decay": 0.01, "adapt": False})
WITH_NORMS = {"LARSRule", "LAMBRule"}  # the classes of update rules


def optimizer_of(name):
    cls, settings = RULES[name]
    return cls(**settings)


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
        self.random = np.random.RandomState(seed)
        self.launcher, self.send, self.receive = launcher, send, receive
        self.optimizers = {name: optimizer_of(name) for name, *_ in params if name}
        self.link = chainer.Link()
        self.entries = []
        for place, (name, shape, dtype) in enumerate(params):
            array = self.random.normal(size=shape).astype(np.float32)
            with self.link.init_scope():
                setattr(self.link, f"p{place}", chainer.Parameter(array.copy()))
            master = chainer.Parameter(send(array))
            param = master if dtype == np.float32 else chainer.Parameter(send(array.astype(dtype)))
            if dtype == np.float16:  # otherwise the copy would look as if somebody had written it
                master.array[...] = send(array)
            rule = None
            if name:
                rule = self.optimizers[name].create_update_rule()
            own = tuple(FoldedHook(fold_of(hook), hook, False) for hook in hooks)
            own += tuple(FoldedHook(fold_of(hook), hook, True) for hook in rule_hooks if rule is not None)
            expression = None if rule is None else expression_of(rule)
            self.entries.append(Entry(f"p{place}", param, master, rule, expression, own))
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
            gradient = (self.random.normal(size=entry.param.shape) * scale).astype(entry.param.dtype)
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
                written = copy.view(np.int16) != master.astype(np.float16).view(np.int16)
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
    return entry.expression.states


def ulps(found, expected, around):
    """The largest difference in units in the last place of the largest of ``found``, ``expected`` and ``around``."""
    largest = np.maximum(np.maximum(np.abs(found), np.abs(expected)), np.abs(around))
    return float(np.max(np.abs(found.astype(np.float64) - expected) / np.spacing(largest), initial=0))

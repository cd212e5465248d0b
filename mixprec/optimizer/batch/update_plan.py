"""The plan of a step: the parameters that take part in the batched update, and why the others do not.

:class:`~mixprec.optimizer.step.OptimizerStep` makes a plan before the first step, and a new one after each change of
parameters, rules or hooks.
"""

import collections
import dataclasses
import logging

import numpy as np
from chainer import GradientMethod, UpdateRule, get_array_types

from mixprec.backends.memory import is_dense
from mixprec.backends.transfers import on_host
from mixprec.native.native_library import library
from mixprec.optimizer.batch.entries import BatchedHook, Entry
from mixprec.optimizer.batch.native_group import MOST_HOOKS, refused
from mixprec.optimizer.no_decay import DecayOfSome
from mixprec.optimizer.part_rates import is_frozen
from mixprec.optimizer.rules.formulas import hook_formula_of, rule_formula_of

_LOGGER = logging.getLogger("mixprec")
ONE_BY_ONE = "one by one: "  # prefix of the reason for parameters that Chainer updates
_NOT_NATIVE = "there is no native library"
# The methods that run a step of Chainer's optimizers; an optimizer that overrides one cannot be batched.
_STEP = ("update", "call_hooks", "call_hook", "reallocate_cleared_grads", "is_safe_to_update", "update_loss_scale")


@dataclasses.dataclass(frozen=True)
class UpdatePlan:
    """How each parameter is updated.

    Attributes:
        entries: :class:`~mixprec.optimizer.batch.entries.Entry` of every parameter in the batch, including parameters
            that are only checked and not updated.
        others: names of the parameters that Chainer updates one by one.
        reasons: dict from the name of every initialized parameter to how it is updated, and why.
        waiting: update rules of parameters that are not initialized yet, which count steps, as in Chainer.
        before: whether the optimizer's hooks run before the batch, in Chainer's own code, as on the host one of them
            needs whole parameters.
    """

    entries: tuple[Entry, ...]
    others: frozenset[str]
    reasons: dict[str, str]
    waiting: tuple[UpdateRule, ...] = ()
    before: bool = False

    def announce(self, announced):
        """Warns about parameters outside of the batch, once per reason; adds reasons to the set ``announced``.

        A missing native library was announced when it was loaded.
        """
        others = [name for name, reason in self.reasons.items() if reason.startswith(ONE_BY_ONE)]
        if not others or self.reasons[others[0]] in {*announced, ONE_BY_ONE + _NOT_NATIVE}:
            return
        reason = self.reasons[others[0]]
        announced.add(reason)
        _LOGGER.warning(
            "%d of %d parameters are not in the batched update (update.fused), %s %s; optimizer.report() lists all",
            *(len(others), len(self.reasons), others[0], reason),
        )


def plan(optimizer, namedparams, batched=True, on_device=False):
    """Decides how each parameter is updated.

    Args:
        optimizer: Chainer's optimizer, set up on ``masters``.
        namedparams: ``[(name, parameter, master)]`` of the model, with each occurrence of a shared parameter.
        batched: whether the user allows a batched update.
        on_device: whether kernels can be launched on the device of the parameters.

    Returns:
        Plan
    """
    initialized = [(name, param, master) for name, param, master in namedparams if param.array is not None]
    obstacle = "batched=False" if not batched else _obstacle(optimizer, initialized, on_device)
    if obstacle is None:
        made = _plan(optimizer, initialized)
        if any(entry.rule is not None for entry in made.entries):
            rules = [param.update_rule for _, param, _ in namedparams if param.array is None]
            return dataclasses.replace(made, waiting=tuple(rule for rule in rules if rule is not None and rule.enabled))
        return dataclasses.replace(made, entries=(), others=frozenset(made.reasons), before=False)
    return _all_one_by_one(initialized, obstacle)


def _plan(optimizer, params):
    is_host = on_host(params[0][1].array)
    hooks = _pre_hooks(optimizer)
    before = is_host and not all(hook_formula_of(hook).is_elementwise for hook in hooks)
    occurs = collections.Counter(id(param) for _, param, _ in params)
    sharing = _sharing_memory(params)
    rules = collections.Counter(id(master.update_rule) for _, _, master in params)
    entries, others, reasons = [], {}, {}
    for name, param, master in params:
        rule = master.update_rule
        if occurs[id(param)] > 1:
            reason = f"it occurs {occurs[id(param)]} times, and Chainer updates it that many times"
        elif not is_dense(param.array):
            reason = "its array is not dense in memory"
        elif name in sharing:
            reason = "it shares memory with another parameter"
        elif rule is None or not rule.enabled:
            why = "frozen" if is_frozen(param) else "its rule is disabled"
            reasons[name] = f"not updated: {'no update rule' if rule is None else why}"
            if (unfit := _unfit(param, master, None, is_host)) is not None:
                others[name] = unfit
                continue
            # Clipping by the norm of all gradients includes gradients of parameters that are not updated.
            clipped = hooks if any(map(_is_over_all, hooks)) and not before else ()
            entries.append(Entry(name, param, master, None, None, _folded(clipped, (), master)))
            continue
        elif rules[id(rule)] > 1:
            reason = "its update rule is shared with another parameter"
        else:
            own = _folded(() if before else hooks, _pre_hooks(rule), master)
            reason = _against(rule, own, is_host) or _unfit(param, master, rule, is_host)
        if reason is None:
            entries.append(Entry(name, param, master, rule, rule_formula_of(rule), own))
            steps = [*(folded.hook for folded in _folded(hooks, _pre_hooks(rule), master)), rule]
            reasons[name] = "batched: " + ", ".join(type(step).__name__ for step in steps)
        else:
            others[name] = reason
            reasons[name] = f"{ONE_BY_ONE}{reason}"
    needed_by = next((hook for hook in hooks if before or _is_over_all(hook)), None)
    if others and needed_by is not None:
        name, why = next(iter(others.items()))
        return _all_one_by_one(
            params, f"{type(needed_by).__name__} runs over all parameters at once, and {name} is not batched: {why}"
        )
    return UpdatePlan(tuple(entries), frozenset(others), reasons, before=before)


def _obstacle(optimizer, params, on_device):
    """Returns why no parameter can be in the batch, or ``None``."""
    if not params:
        return "there is no initialized parameter"
    changed = [name for name in _STEP if getattr(type(optimizer), name) is not getattr(GradientMethod, name)]
    if changed:
        return f"{type(optimizer).__name__} has its own {changed[0]}()"
    devices = {param.device.name for _, param, _ in params}
    if len(devices) > 1:
        return f"parameters are on several devices, {', '.join(sorted(devices))}"
    array = params[0][1].array
    if on_host(array) and library() is None:
        return _NOT_NATIVE
    if not on_host(array) and not on_device:
        return f"{type(array).__module__} has no batched update"
    post = optimizer._hookable._post_update_hooks
    if post:
        return f"the hook {next(iter(post))} runs after the update"
    for name, hook in optimizer._hookable._pre_update_hooks.items():
        if hook_formula_of(hook) is None:
            return f"the hook {name} is unknown"
    return None


def _unfit(param, master, rule, is_host):
    """Returns why the arrays of a parameter cannot be in the batch, or ``None``."""
    if master.dtype != np.float32:
        return f"it is in {master.dtype}"
    return refused(param, master, rule) if is_host else None


def _against(rule, hooks, is_host):
    """Returns why a parameter with this rule and these hooks cannot be in the batch, or ``None``."""
    formula = rule_formula_of(rule)
    if formula is None:
        return f"the rule {type(rule).__name__} is unknown"
    for name in formula.hyperparameters:
        # An array of shape () affects the dtype of Chainer's computations, a number does not.
        if isinstance(getattr(rule.hyperparam, name, None), get_array_types()):
            return f"its hyperparameter {name} is an array"
    if is_host and not formula.is_elementwise:
        return f"{type(rule).__name__} needs norms of whole parameters"
    if is_host and len(hooks) > MOST_HOOKS:
        return f"it has more than {MOST_HOOKS} hooks"
    if rule._hookable._post_update_hooks:
        return f"the hook {next(iter(rule._hookable._post_update_hooks))} runs after the update"
    for name, hook in rule._hookable._pre_update_hooks.items():
        formula = hook_formula_of(hook)
        if formula is None:
            return f"the hook {name} is unknown"
        if is_host and not formula.is_elementwise:
            return f"the hook {name} needs whole parameters"
        if _is_over_all(hook):
            return f"the hook {name} is only for optimizers"
    return None


def _all_one_by_one(params, reason):
    names = [name for name, _, _ in params]
    return UpdatePlan((), frozenset(names), dict.fromkeys(names, f"{ONE_BY_ONE}{reason}"))


def _sharing_memory(params):
    """Returns the names of the parameters whose dense arrays share memory with another parameter's array."""
    spans = sorted((_address(param.array), param.array.nbytes, name) for name, param, _ in params if param.size)
    sharing, end, last = set(), 0, None
    for start, size, name in spans:
        if start < end:
            sharing |= {last, name}
        if start + size > end:
            end, last = start + size, name
    return sharing


def _address(array):
    return array.__array_interface__["data"][0] if isinstance(array, np.ndarray) else array.data.ptr


def _is_over_all(hook):
    """Whether a hook needs the gradients of all parameters."""
    return hook_formula_of(hook).norms == "all"


def _pre_hooks(owner):
    return tuple(owner._hookable._pre_update_hooks.values())


def _folded(hooks, own, master):
    """Returns the hooks of an optimizer and of a rule for the entry of a parameter."""
    folded = []
    for hook, counted in [*((hook, False) for hook in hooks), *((hook, True) for hook in own)]:
        if isinstance(hook, DecayOfSome):
            if master.no_decay:
                continue
            hook = hook.hook
        folded.append(BatchedHook(hook_formula_of(hook), hook, counted))
    return tuple(folded)

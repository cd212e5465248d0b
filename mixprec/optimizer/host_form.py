"""A step on the host: the native library runs check, hooks and update, one group of parameters at a time.

:class:`~mixprec.optimizer.step.OptimizerStep` makes a :class:`HostForm` for each plan whose parameters are NumPy
arrays, and calls it in every step.
"""

import math
import operator

import numpy as np

from mixprec.backends.memory import axes
from mixprec.optimizer.batch.native_group import NativeGroup
from mixprec.optimizer.gradients import check_shape, gather, not_finite
from mixprec.optimizer.update_form import UpdateForm
from mixprec.precision.grad_scales import MIXED, UsedScale, factor_to_unscale

_SIZE = operator.attrgetter("size")


class HostForm(UpdateForm):
    """Updates many parameters group by group, without a temporary array for any of them.

    Args:
        optimizer: Chainer's optimizer, set up on ``masters``.
        masters: :class:`~mixprec.optimizer.masters.Masters`.
        plan: :class:`~mixprec.optimizer.batch.update_plan.UpdatePlan` with entries that the native library supports.
            Their rules have their states already.
        params: all parameters of the model, in the order in which :meth:`check` gets gradients.
    """

    def __init__(self, optimizer, masters, plan, params):
        self._optimizer, self._masters, self._plan = optimizer, masters, plan
        entries = plan.entries
        self._params = [entry.param for entry in entries]
        self._sizes = [param.size for param in self._params]
        self._shapes_are_checked = False
        number = {id(param): number for number, param in enumerate(params)}
        members = [number[id(param)] for param in self._params]
        self._members = None if members == list(range(len(params))) else members
        # A gradient with its axes in this order is C-contiguous if it lies as its parameter does.
        masters = enumerate(entry.master.array for entry in entries)
        self._turned = [(number, axes(array)) for number, array in masters if not array.flags.c_contiguous]
        groups = {}
        for number, entry in enumerate(entries):
            groups.setdefault(_key(entry), []).append((number, entry))
        self._groups = [NativeGroup(members, len(entries)) for members in groups.values()]
        self._updated = [group for group in self._groups if group.updates]

    def check(self, scale, gradients, statistics, done):
        """See :class:`~mixprec.optimizer.update_form.UpdateForm`."""
        self._of_masters = bool(self._plan.before or done)
        if not self._of_masters:
            self._load(self._of_entries(gradients), self._inverses(scale))
        are_finite = [group.follow() for group in self._groups]
        if self._of_masters:  # Chainer's own code runs hooks on the gradients of masters, or these exist already
            with self._masters.fixed(of=()):
                return bool(gather(self._masters.pairs(), done))
        return not all(are_finite)

    def run_hooks(self, skip):
        """See :class:`~mixprec.optimizer.update_form.UpdateForm`."""
        if skip:
            return skip
        if self._of_masters:
            # Chainer's GradientClipping divides by a norm of 0, too.
            with self._masters.fixed(of=()), np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                self._optimizer.reallocate_cleared_grads()
                if self._plan.before:
                    self._optimizer.call_hooks("pre")
                    if not_finite(self._optimizer):
                        return True
            self._load(tuple(entry.master.grad for entry in self._plan.entries), 1.0)
        are_finite = [group.look() for group in self._updated]  # nothing has changed if one rejects a hyperparameter
        return not all(are_finite)

    def update(self, skip, scaler, counter):
        """See :class:`~mixprec.optimizer.update_form.UpdateForm`."""
        for group in self._groups:
            group.finish(skip)
        if not skip:
            self._optimizer.t += 1
            for rule in self._plan.waiting:
                rule.t += 1
        return bool(skip)

    def forget(self):
        """See :class:`~mixprec.optimizer.update_form.UpdateForm`."""
        for group in self._groups:
            group.forget()

    def _load(self, gradients, inverses):
        """Passes to groups the gradient of each entry, and its factor: one float for all, or a list of floats."""
        gradients = list(gradients)
        for member, order in self._turned:
            gradients[member] = gradients[member].transpose(order)
        for group in self._groups:
            group.load(gradients, inverses)

    def _of_entries(self, gradients):
        """Returns the gradient of each entry, zeros if it has none."""
        if self._members is not None:
            gradients = [gradients[member] for member in self._members]
        try:
            sizes = list(map(_SIZE, gradients))
        except AttributeError:  # None has no size
            gradients = [
                np.zeros_like(param.array) if gradient is None else gradient
                for param, gradient in zip(self._params, gradients, strict=True)
            ]
            sizes = list(map(_SIZE, gradients))
        # Chainer accepts gradients of the parameter's shape only. Any other is from before the parameter was replaced.
        if not self._shapes_are_checked or sizes != self._sizes:
            for entry, gradient in zip(self._plan.entries, gradients, strict=True):
                check_shape(entry.name, entry.param, gradient)
            self._shapes_are_checked = True
        return gradients

    def _inverses(self, scale):
        """Returns the factors 1 / loss scale for the gradients: a float, or one for each entry if they differ."""
        if scale is not MIXED and not isinstance(scale, UsedScale):
            return _inverse_of(scale)
        factors = list(map(factor_to_unscale, self._params))
        inverses = {id(factor): _inverse_of(factor) for factor in {id(factor): factor for factor in factors}.values()}
        return [inverses[id(factor)] for factor in factors]


def _inverse_of(factor):
    number = 1.0 if factor is None else float(factor)  # on the host, as the parameters are
    return 1 / number if number else math.inf  # a scale without a floor may have dropped to 0


def _key(entry):
    """A key that is equal for entries that are updated with the same numbers, which may change from step to step."""
    kind = tuple(id(hook.hook) for hook in entry.hooks), id(entry.formula)
    if entry.rule is None:
        return kind
    hyperparam = entry.rule.hyperparam
    names = entry.formula.hyperparameters
    own = tuple(vars(hyperparam).get(name) for name in names)
    kept = tuple(vars(entry.rule).get(name) for name in names)
    counted = entry.rule.t if entry.formula.counts else None
    return (*kind, id(hyperparam.parent), own, kept, counted, entry.formula.carried_of(entry.rule))

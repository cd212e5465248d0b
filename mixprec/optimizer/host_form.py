"""A step on NumPy: parameters go through check, hooks and update in chunks that fit into the processor's cache.

:class:`~mixprec.optimizer.step.OptimizerStep` makes a :class:`HostForm` for each plan whose parameters are NumPy's, and
calls it in every step.
"""

import math
import operator

import numpy as np

from mixprec.backends.memory import axes
from mixprec.optimizer.batch.chunks import LARGE, Scratch, chunks_of
from mixprec.optimizer.grad_scales import MIXED, UsedScale, factor_to_unscale
from mixprec.optimizer.gradients import check_shape, gather, not_finite
from mixprec.optimizer.update_form import UpdateForm

_SIZE = operator.attrgetter("size")


class HostForm(UpdateForm):
    """Updates many parameters chunk by chunk, without a temporary array for any of them.

    Args:
        optimizer: Chainer's optimizer, set up on ``masters``.
        masters: :class:`~mixprec.optimizer.masters.Masters`.
        plan: :class:`~mixprec.optimizer.batch.update_plan.UpdatePlan` with entries, whose arrays are NumPy's. Their
            rules have their states already.
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
        groups = {}
        for number, entry in enumerate(entries):
            groups.setdefault(_key(entry), []).append((number, entry))
        scratch = {dtype: Scratch(dtype) for dtype in {entry.master.dtype for entry in entries}}
        # A gradient with its axes in this order is C-contiguous if it lies as its parameter does.
        self._turned = [
            (number, axes(entry.master.array))
            for number, entry in enumerate(entries)
            if not entry.master.array.flags.c_contiguous
        ]
        self._in_parts = [number for number, entry in enumerate(entries) if entry.master.array.size >= LARGE]
        groups = [_Group(members, scratch[members[0][1].master.dtype]) for members in groups.values()]
        self._updated = [group for group in groups if group.formula is not None]
        self._chunks = [
            (chunk, _picker(numbers), group.scratch.gradient[: chunk.master.size])
            for group in groups
            for chunk, numbers in group.chunks
        ]

    def check(self, scale, gradients, statistics):
        """See :class:`~mixprec.optimizer.update_form.UpdateForm`."""
        if not self._plan.before:
            self._load(self._of_entries(gradients), self._inverses(scale))
        for chunk, _, _ in self._chunks:
            chunk.follow()
        if self._plan.before:  # hooks run in Chainer's own code, on the gradients of masters
            with self._masters.fixed(of=()):
                return bool(gather(self._masters.pairs()))
        with np.errstate(over="ignore", invalid="ignore"):
            for chunk, _, scratch in self._chunks:
                if not chunk.is_finite(scratch):
                    return True
        return False

    def run_hooks(self, skip):
        """See :class:`~mixprec.optimizer.update_form.UpdateForm`."""
        if skip:
            return skip
        if self._plan.before:
            with self._masters.fixed(of=()), np.errstate(over="ignore", invalid="ignore"):
                self._optimizer.reallocate_cleared_grads()
                self._optimizer.call_hooks("pre")
                if not_finite(self._optimizer):
                    return True
            self._load(tuple(entry.master.grad for entry in self._plan.entries), 1.0)
        for group in self._updated:
            group.look()  # nothing has moved yet, should a hyperparameter be refused
        with np.errstate(over="ignore", invalid="ignore"):
            return not all(group.is_finite_after_hooks() for group in self._updated)

    def update(self, skip, scaler, counter):
        """See :class:`~mixprec.optimizer.update_form.UpdateForm`."""
        if not skip:
            with np.errstate(over="ignore", invalid="ignore"):
                for group in self._updated:
                    group.update()
            self._optimizer.t += 1
            for rule in self._plan.waiting:
                rule.t += 1
        for chunk, _, _ in self._chunks:
            chunk.forget()  # the gradients, whose memory the next backward pass may want
        return bool(skip)

    def settle(self):
        """Returns ``False``: on the host a step counts at once."""
        return False

    def _load(self, gradients, inverses):
        """Hands chunks the gradient of each entry, and what to multiply it by: a float for all, or a list of floats."""
        one = isinstance(inverses, float)
        gradients = list(gradients)
        for member, order in self._turned:
            gradients[member] = gradients[member].transpose(order)
        for member in self._in_parts:
            gradients[member] = gradients[member].reshape(-1)  # a copy, if need be, for all parts
        for chunk, members, _ in self._chunks:
            chunk.load(members(gradients), inverses if one else members(inverses))

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
        # Chainer takes a gradient of the parameter's shape only. Another one is from before the parameter was replaced.
        if not self._shapes_are_checked or sizes != self._sizes:
            for entry, gradient in zip(self._plan.entries, gradients, strict=True):
                check_shape(entry.name, entry.param, gradient)
            self._shapes_are_checked = True
        return gradients

    def _inverses(self, scale):
        """Returns what unscales the gradients, 1 / their loss scale: a float, or one for each entry if they differ."""
        if scale is not MIXED and not isinstance(scale, UsedScale):
            return _inverse_of(scale)
        factors = list(map(factor_to_unscale, self._params))
        inverses = {id(factor): _inverse_of(factor) for factor in {id(factor): factor for factor in factors}.values()}
        return [inverses[id(factor)] for factor in factors]


class _Group:
    """Entries of one dtype that the same numbers update.

    Args:
        members: ``[(number of the entry, entry)]``.
        scratch: :class:`~mixprec.optimizer.batch.chunks.Scratch`.

    Attributes:
        chunks: ``[(chunk, numbers of its entries)]``.
    """

    def __init__(self, members, scratch):
        self.scratch = scratch
        self._rules = [entry.rule for _, entry in members]
        self.formula, self._hooks = members[0][1].formula, members[0][1].hooks
        self._numbers = self._numbers_of_hooks = None
        numbers = {id(entry): number for number, entry in members}
        self.chunks = [
            (chunk, [numbers[id(entry)] for entry in entries])
            for chunk, entries in chunks_of([entry for _, entry in members])
        ]

    def look(self):
        """Takes the hyperparameters of hooks and rule as they are now, for this step.

        Raises:
            ValueError: a hyperparameter is refused, as in Chainer.
        """
        self._numbers_of_hooks = [hook.formula.hyperparameters_of(hook.hook) for hook in self._hooks]
        self._numbers = self.formula.numbers_of(self._rules[0], self._rules[0].t + 1)

    def is_finite_after_hooks(self):
        """Whether the gradients are, after hooks, which run in scratch memory."""
        return not self._hooks or all(np.isfinite(self._hooked(chunk)).all() for chunk, _ in self.chunks)

    def update(self):
        """Runs hooks and rule, and rounds masters into the parameters."""
        formula = self.formula
        a, b = self.scratch.a, self.scratch.b
        for chunk, _ in self.chunks:
            gradient = self._hooked(chunk)
            size = gradient.size
            formula.host(chunk.master, gradient, chunk.states, self._numbers, a[:size], b[:size])
            chunk.store(self.scratch.rounding)
        for rule in self._rules:
            rule.t += 1
        for power, base in formula.powers.items():
            for rule in self._rules:
                setattr(rule, power, getattr(rule, power) * getattr(rule.hyperparam, base))

    def _hooked(self, chunk):
        """Returns the gradient of a chunk after hooks, in scratch memory."""
        gradient = chunk.gradient(self.scratch.gradient[: chunk.master.size])
        for hook, numbers in zip(self._hooks, self._numbers_of_hooks, strict=True):
            hook.formula.host(chunk.master, gradient, numbers, self.scratch.a[: gradient.size])
        return gradient


def _inverse_of(factor):
    number = 1.0 if factor is None else float(factor)  # on the host, as the parameters are
    return 1 / number if number else math.inf  # a scale without a floor may have come down to 0


def _picker(numbers):
    """Returns a function that picks the elements with these numbers from a list."""
    if len(numbers) == 1:
        (number,) = numbers
        return operator.itemgetter(slice(number, number + 1))
    return operator.itemgetter(*numbers)


def _key(entry):
    """What entries must have in common to be updated by the same numbers, which may change from step to step."""
    kind = entry.master.dtype, tuple(id(hook.hook) for hook in entry.hooks), id(entry.formula)
    if entry.rule is None:
        return kind
    hyperparam = entry.rule.hyperparam
    names = entry.formula.hyperparameters
    own = tuple(vars(hyperparam).get(name) for name in names)
    kept = tuple(vars(entry.rule).get(name) for name in names)
    return (*kind, id(hyperparam.parent), own, kept, entry.rule.t if entry.formula.counts else None)

"""The batched update on NumPy."""

import operator

import numpy as np

from mixprec.backends.memory import axes
from mixprec.optimizer.batch.chunks import LARGE, Scratch, chunks_of


class HostBatch:
    """Checks and updates many parameters, chunk by chunk, without a temporary array for any of them.

    A step is :meth:`follow`, :meth:`load`, :meth:`is_finite` and then, unless it is skipped, :meth:`update`.

    Args:
        entries: :class:`~mixprec.optimizer.batch.entries.Entry` of each parameter, with arrays of NumPy. Their rules
            have their states already.
    """

    def __init__(self, entries):
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
        self._groups = [_Group(members, scratch[members[0][1].master.dtype]) for members in groups.values()]

    def follow(self):
        """Takes over into the masters what was written into rounded copies since the last step."""
        for group in self._groups:
            for chunk, _ in group.chunks:
                chunk.follow()

    def load(self, gradients, inverses):
        """Takes the gradients of the step.

        Args:
            gradients: array of each entry.
            inverses: what to multiply each of them by, a power of two, as a list of floats, or one float for all.
        """
        one = isinstance(inverses, float)
        gradients = list(gradients)
        for member, order in self._turned:
            gradients[member] = gradients[member].transpose(order)
        for member in self._in_parts:
            gradients[member] = gradients[member].reshape(-1)  # a copy, if need be, for all parts
        for group in self._groups:
            for chunk, members in group.chunks:
                chunk.load(members(gradients), inverses if one else members(inverses))

    def is_finite(self, updated_only=False):
        """Whether all gradients, or those of entries with a rule, are finite, unscaled and after hooks."""
        groups = [group for group in self._groups if group.expression is not None or not updated_only]
        with np.errstate(over="ignore", invalid="ignore"):
            finite = all(group.is_finite() for group in groups)
        if not finite:
            self._forget()
        return finite

    def update(self):
        """Updates masters, states, ``t`` of the rules, and parameters."""
        with np.errstate(over="ignore", invalid="ignore"):
            for group, own in self.numbers():  # before anything moves: a hyperparameter may be refused
                group.update(own)
        self._forget()

    def numbers(self):
        """Returns ``[(group, its numbers)]`` of the groups to update.

        Raises:
            ValueError: a hyperparameter is refused, as in Chainer.
        """
        return [(group, group.numbers()) for group in self._groups if group.expression is not None]

    def _forget(self):
        """Lets go of the gradients, whose memory the next backward pass may want."""
        for group in self._groups:
            for chunk, _ in group.chunks:
                chunk.forget()


class _Group:
    """Entries of one dtype that the same numbers update.

    Args:
        members: ``[(number of the entry, entry)]``.
        scratch: :class:`~mixprec.optimizer.batch.chunks.Scratch`.
    """

    def __init__(self, members, scratch):
        self._scratch = scratch
        self._rules = [entry.rule for _, entry in members]
        self.expression, self._hooks = members[0][1].expression, members[0][1].hooks
        numbers = {id(entry): number for number, entry in members}
        self.chunks = [
            (chunk, _picker([numbers[id(entry)] for entry in entries]))
            for chunk, entries in chunks_of([entry for _, entry in members])
        ]

    def is_finite(self):
        """Whether the gradients are."""
        scratch = self._scratch.gradient
        if not all(chunk.is_finite(scratch[: chunk.master.size]) for chunk, _ in self.chunks):
            return False
        return not self._hooks or all(np.isfinite(gradient).all() for _, gradient in self._hooked())

    def numbers(self):
        """Returns the numbers of the expression."""
        return self.expression.numbers_of(self._rules[0], self._rules[0].t + 1)

    def update(self, numbers):
        """Runs hooks and rule."""
        expression = self.expression
        a, b = self._scratch.a, self._scratch.b
        for chunk, gradient in self._hooked():
            size = gradient.size
            expression.host(chunk.master, gradient, chunk.states, numbers, a[:size], b[:size])
            chunk.store(self._scratch.rounding)
        for rule in self._rules:
            rule.t += 1
        for power, base in expression.powers.items():
            for rule in self._rules:
                setattr(rule, power, getattr(rule, power) * getattr(rule.hyperparam, base))

    def _hooked(self):
        """Yields each chunk with its gradient after hooks, in scratch memory."""
        hooks = [(folded.fold.host, folded.fold.hyperparameters_of(folded.hook)) for folded in self._hooks]
        for chunk, _ in self.chunks:
            gradient = chunk.gradient(self._scratch.gradient[: chunk.master.size])
            for run, numbers in hooks:
                run(chunk.master, gradient, numbers, self._scratch.a[: gradient.size])
            yield chunk, gradient


def _picker(numbers):
    """Returns a function that picks the elements with these numbers from a list, as a tuple."""
    if len(numbers) == 1:
        (number,) = numbers
        return lambda values: (values[number],)
    return operator.itemgetter(*numbers)


def _key(entry):
    """What entries must have in common to be updated by the same numbers, which may change from step to step."""
    kind = entry.master.dtype, tuple(id(folded.hook) for folded in entry.hooks), id(entry.expression)
    if entry.rule is None:
        return kind
    hyperparam = entry.rule.hyperparam
    names = entry.expression.hyperparameters
    own = tuple(vars(hyperparam).get(name) for name in names)
    kept = tuple(vars(entry.rule).get(name) for name in names)
    return (*kind, id(hyperparam.parent), own, kept, entry.rule.t if entry.expression.counts else None)

"""A step in which the batched update takes part."""

import itertools
import operator

import numpy as np

from mixprec.backends.reading import read
from mixprec.optimizer import gradients
from mixprec.optimizer.changes import Changes
from mixprec.optimizer.rollback import update_unless
from mixprec.optimizer.scaled_loss import NOT_REACHED, scale_of
from mixprec.update.host import HostBatch
from mixprec.update.plan import plan

_SHAPE_AND_DTYPE = operator.attrgetter("shape", "dtype")


class Batched:
    """Runs steps of an optimizer, most parameters in a batch and the others as Chainer does, one by one.

    Args:
        optimizer: Chainer's optimizer, set up on ``masters``.
        masters: :class:`~mixprec.optimizer.masters.Masters`.
        wanted: whether there may be a batch at all.
    """

    def __init__(self, optimizer, masters, wanted):
        self._optimizer = optimizer
        self._masters = masters
        self._wanted = wanted
        self._changes = None
        self._plan = None
        self._batch = None

    @property
    def plan(self):
        """The :class:`~mixprec.update.plan.Plan` as things are now."""
        if self._changes is None or not self._changes.none():
            self._make()
        return self._plan

    def step(self, scales, steps):
        """Updates the parameters from the gradients of the model, unless one of them is not finite.

        Args:
            scales: whether there is a loss scale.
            steps: :class:`~mixprec.optimizer.steps.Steps`.

        Returns:
            Whether the step is skipped: a boolean array of shape ().
        """
        plan = self.plan
        if not plan.entries:
            with self._masters.fixed():
                gradients.check_scaled(self._masters.structure.namedparams, scales=scales)
                return update_unless(gradients.gather(self._masters.pairs()), self._optimizer, steps)
        return self._step_on_host(plan, scales, steps)

    def _step_on_host(self, plan, scales, steps):
        gradients.check_scaled(self._masters.structure.namedparams, scales=scales)
        self._batch.follow()
        if plan.before:
            skipped = self._run_hooks_before()
        else:
            self._batch.load(self._gradients(), self._inverses())
            skipped = not self._batch.is_finite()
        if plan.others:
            skipped = self._update_others(skipped, steps)
        steps.settle()
        if not skipped:
            self._batch.update()
            self._optimizer.t += 1
            for rule in plan.waiting:
                rule.t += 1
        self._changes.expect()
        return np.bool_(skipped)

    def _run_hooks_before(self):
        """Runs the hooks of the optimizer in Chainer's own code on the masters; returns whether to skip the step."""
        optimizer, masters, entries = self._optimizer, self._masters, self._plan.entries
        with masters.fixed(of=()):
            if gradients.gather(masters.pairs()):
                return True
            with np.errstate(over="ignore", invalid="ignore"):
                optimizer.reallocate_cleared_grads()
                optimizer.call_hooks("pre")
            if gradients.not_finite(optimizer):
                return True
        self._batch.load([entry.master.grad for entry in entries], [1.0] * len(entries))
        return False

    def _update_others(self, skipped, steps):
        with self._masters.fixed(of=self._plan.others):
            part = self._masters.part(self._optimizer, self._plan.others)
            return update_unless(skipped | gradients.gather(part.target.pairs()), part, steps)

    def _make(self):
        optimizer, masters = self._optimizer, self._masters
        self._plan = plan(optimizer, masters.all_current(), self._wanted)
        entries = self._plan.entries
        self._params = [entry.param for entry in entries]
        self._names = [entry.name for entry in entries]
        self._shapes_and_dtypes = [(param.shape, param.dtype) for param in self._params]
        self._batch = HostBatch(entries) if entries else None
        kept = {name for entry in entries if entry.expression for name in entry.expression.hyperparameters}
        self._changes = Changes(optimizer, masters, kept)

    def _gradients(self):
        """Returns the gradient of each entry, zeros if it has none."""
        arrays = [param.grad for param in self._params]
        if any(map(operator.is_, arrays, itertools.repeat(None))):
            arrays = [
                np.zeros_like(param.array) if array is None else array
                for param, array in zip(self._params, arrays, strict=True)
            ]
        if list(map(_SHAPE_AND_DTYPE, arrays)) != self._shapes_and_dtypes:
            self._refuse(arrays)
        return arrays

    def _refuse(self, arrays):
        for name, array, expected in zip(self._names, arrays, self._shapes_and_dtypes, strict=True):
            if (array.shape, array.dtype) != expected:
                shape, dtype = expected
                raise ValueError(
                    f"the gradient of {name} has shape {array.shape} and dtype {array.dtype}; "
                    f"the parameter has {shape} and {dtype}: call cleargrads() after a parameter was replaced"
                )

    def _inverses(self):
        """Returns for each entry what its gradient is to be multiplied by: 1 / its loss scale, a float."""
        inverses = {}

        def inverse(factor):
            if id(factor) not in inverses:
                inverses[id(factor)] = 1 / float(read(factor))
            return inverses[id(factor)]

        notes = [param._loss_scale for param in self._params]
        if all(map(operator.is_, notes, itertools.repeat(NOT_REACHED))):
            return [1.0] * len(notes)
        return [inverse(scale_of(param)) for param in self._params]

"""The training step as work that can be captured, for :func:`mixprec.capture`.

A graph repeats launches with the addresses and numbers of the capture. State that changes from step to step is on the
device already, except hyperparameters, which :class:`TrainingSession` uploads before a launch.
"""

import contextlib
import operator
import weakref
from collections.abc import Iterator

import chainer
import numpy as np

from mixprec.backends.dropout_state import dropout_state
from mixprec.graph_capture.called_links import local_hooks
from mixprec.graph_capture.capturable import Capturable, GraphSession
from mixprec.graph_capture.graph_table import GraphTable
from mixprec.graph_capture.rank_agreement import resolve
from mixprec.optimizer.batch.device_batch import DeviceBatch
from mixprec.optimizer.counted_losses import CountedLosses
from mixprec.precision.scale_search import give_up


class TrainingStep(Capturable):
    """A step of an optimizer: loss function, backward pass and update.

    Args:
        optimizer: :class:`~mixprec.MixedPrecisionOptimizer`, set up before the first call.
        lossfun: as for its ``update``; ``None`` for the model.
        second_stream: whether gradients of convolution filters are computed on a second stream.
    """

    name = "the training step"
    branches = ("last_step_skipped",)

    def __init__(self, optimizer, lossfun, second_stream):
        self._optimizer, self._given_lossfun = optimizer, lossfun
        self.second_stream = second_stream
        self._left = []  # weak references to the variables that the last step has left in the model

    @property
    def model(self):
        """The model of the optimizer."""
        if self._optimizer.target is None:
            raise RuntimeError("the optimizer is not set up: call setup(model)")
        return self._optimizer.target

    @property
    def is_alone(self):
        """See :class:`Capturable`."""
        return self._optimizer._ranks is None

    @contextlib.contextmanager
    def agreed(self, vote):
        """See :meth:`Capturable.agreed`."""
        if self.is_alone:
            yield vote
        else:
            with self._optimizer._ranks.called(vote.number, vote) as votes:
                yield resolve(vote, votes)

    def becomes_alike(self):
        """See :meth:`Capturable.becomes_alike`: no backward pass is repeated."""
        give_up(self._optimizer._scaler, "a captured step has one backward pass")

    def first_of_ranks(self, reason):
        """See :meth:`Capturable.first_of_ranks`."""
        return reason if self.is_alone else self._optimizer._ranks.first(reason)

    def run(self, args, kwargs, *, unchains=False):
        """Runs the step; returns the loss, or the sum of the losses, a variable without a graph."""
        arrays, kept, made = [], [], []

        def collected(loss):
            arrays.append(loss.array)
            made.append(weakref.ref(loss))
            return loss

        def lossfun(*args, **kwargs):
            losses = self._lossfun(*args, **kwargs)
            if isinstance(losses, Iterator):
                return CountedLosses(map(collected, losses), operator.length_hint(losses))
            kept.append(losses)
            return collected(losses)

        try:
            self._optimizer._step(lossfun, args, kwargs)
        finally:  # a call after one that has failed begins without its graph, too
            self._left = [weakref.ref(variable) for _, _, variable in self.outputs()[-1]]
        if unchains:  # not after each loss: a backward pass may go on into the graph of a loss before it
            for variable in _alive([*made, *self._left]):
                variable.unchain_backward()
        total = sum(arrays[1:], start=arrays[0])
        if isinstance(total, np.generic):  # a sum of arrays of shape () on NumPy
            total = np.asarray(total)
        return chainer.Variable(total, requires_grad=False)

    def session(self):
        """See :meth:`Capturable.session`; the optimizer has a batch on a device and has run a step."""
        return TrainingSession(self._optimizer, self)

    def cut(self):
        """See :meth:`Capturable.cut`: the backward pass of a step ends at its beginning, also in recurrent links."""
        for variable in _alive(self._left):
            variable.unchain()
        self._left = []

    def is_under_way(self):
        """Whether a forward pass has changed running statistics since the last step."""
        return self._optimizer._statistics.are_saved

    @property
    def variant(self):
        """See :attr:`Capturable.variant`: the kind of the next step of a preconditioner."""
        return None if self._optimizer._preconditioner is None else self._optimizer._preconditioner.variant

    def version(self):
        """Returns an object that is replaced when parameters, rules or hooks have changed."""
        return self._optimizer._optimizer_step.changes

    def why_not(self):
        """See :meth:`Capturable.why_not`."""
        hook = super().why_not()
        if hook is not None:
            return hook
        if not self.is_alone and not self._optimizer._ranks.transport.shares_order:
            return "gradients are averaged over processes by MPI, which a graph cannot contain"
        step = self._optimizer._optimizer_step
        reasons, others = step.plan.reasons, step.plan.others
        alone = next((name for name in reasons if name in others), None)
        if alone is not None:
            return f"{alone} is updated {reasons[alone]}"
        if not isinstance(step.batch, DeviceBatch):
            return "no parameter is updated on a CUDA device"
        if step.shares_rules:
            return "another optimizer shares the update rules, and needs their t after every step"
        return None

    def settle(self):
        """See :meth:`Capturable.settle`: steps that are undone later would count twice if the step reads ``t``."""
        self._optimizer._optimizer_step.settle()

    def state(self):
        """Returns a dict of all arrays that a step changes, by names for messages."""
        step, scaler = self._optimizer._optimizer_step, self._optimizer._scaler
        step.before_launch()  # otherwise settled counts would be restored with these arrays, and count twice
        arrays = dict(self._updated())
        for name, link in self.model.namedlinks():
            arrays |= {f"{key} of {name}": link.__dict__.get(key) for key in link._persistent}
        applied = step.batch.applied
        arrays |= {"t": applied, "the random state of dropout": dropout_state(applied)}
        for of, owner in (("", self._optimizer._counter), (" of the loss scale", scaler)):
            arrays |= {f"{name}{of}": array for name, array in zip(owner.state, owner.arrays, strict=True)}
        if self._optimizer._preconditioner is not None:
            arrays |= self._optimizer._preconditioner.state()
        unique = {id(array): (name, array) for name, array in reversed(arrays.items()) if _is_array(array)}
        return dict(reversed(unique.values()))

    def _updated(self):
        """Yields names and arrays that the optimizer's rules update."""
        for name, param, master in self._optimizer._masters.all_current():
            if param.array is not None:
                yield name, param.array
                yield f"the master of {name}", master.array
                rule = param.update_rule
                for key, value in (rule.state or {}).items() if rule is not None else ():
                    yield f"{key} of {name}", value

    def outputs(self):
        """Returns gradients and what links keep, for :meth:`restore`.

        Returns:
            ``parameters, gradients, their loss scales, [(link, name, value)]``: the values are attributes that are
            variables or arrays, such as ``loss`` of a classifier.
        """
        index = self._optimizer._masters.index
        params = [param for param in index.params if param.array is not None]
        values = [
            (link, name, value)
            for link in index.links
            for name, value in vars(link).items()
            if (isinstance(value, chainer.Variable) and not isinstance(value, chainer.Parameter))
            or (_is_array(value) and name not in link._persistent)
        ]
        return params, [param.grad for param in params], [param._loss_scale for param in params], values

    def restore(self, outputs):
        """Gives parameters and links the gradients and values of :meth:`outputs`."""
        params, gradients, scales, values = outputs
        for param, gradient, scale in zip(params, gradients, scales, strict=True):
            if param._grad is not gradient or param._grad_var is not None:
                param.grad = gradient
            if param._loss_scale is not scale:
                param._loss_scale = scale
        for link, name, value in values:
            if vars(link).get(name) is not value:
                setattr(link, name, value)

    def applied(self):
        """Whether the last step was not skipped; reads from the device."""
        return not self._optimizer.last_step_skipped

    def finish(self, arguments, *, wait):
        """Raises LossScaleExhausted if as many steps as patience allows have overflowed in a row."""
        self._optimizer._finish(self._lossfun, arguments, wait=wait)

    @property
    def _lossfun(self):
        return self.model if self._given_lossfun is None else self._given_lossfun


class TrainingSession(GraphSession):
    """The host's part of a graph of a training step.

    Args:
        optimizer: the wrapper, set up, with a batch on a device; it has run a step.
        step: the :class:`TrainingStep` of this optimizer.
    """

    def __init__(self, optimizer, step):
        self._optimizer, self._step = optimizer, step
        self._index, self._optimizer_step = optimizer._masters.index, optimizer._optimizer_step
        self._batch = self._optimizer_step.batch
        self._table = GraphTable(self._batch.table)
        self._ranks, self._preconditioner = optimizer._ranks, optimizer._preconditioner
        if self._ranks is not None:
            self.number = self._ranks.next_capture()

    @contextlib.contextmanager
    def capturing(self):
        """See :meth:`GraphSession.capturing`; afterwards the session knows the objects that the graph uses."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._batch.reading(self._table))
            for each in filter(None, (self._ranks, self._preconditioner)):
                stack.enter_context(each.capturing())
            yield
        self._changes, self._links = self._optimizer_step.changes, self._index.links
        values = [(vars(link), name) for link in self._links for name in sorted(link._persistent)]
        self._owners, self._names = [owner for owner, _ in values], [name for _, name in values]
        self._held, self._hooks = self._objects(), local_hooks(self._links)
        self._copies = self._optimizer._statistics.copies  # held: the graph writes into them
        *others, values = self._step.outputs()
        # Arrays may be the user's, who replaces them.
        self._outputs = *others, [each for each in values if not _is_array(each[2])]

    def holds(self):
        """Whether parameters, arrays, rules and hooks are the same as at the capture."""
        if self._optimizer._optimizer_step is not self._optimizer_step:  # setup() was called with another model
            return False
        if self._optimizer_step.changes is not self._changes or not self._optimizer_step.unchanged():
            return False
        if self._index.links is not self._links or local_hooks(self._links) != self._hooks:
            return False
        now = self._objects()
        return all(map(operator.is_, now, self._held)) or all(map(_same, now, self._held))

    def before_launch(self):
        """Uploads hyperparameters that have changed, on the stream of the graph."""
        self._optimizer_step.before_launch()
        self._table.refresh()
        if self._preconditioner is not None:
            self._preconditioner.refresh(self._optimizer)

    def after_launch(self):
        """Updates the host as an eager step does: a step is outstanding; gradients and variables are the graph's."""
        self._optimizer_step.after_launch()
        self._optimizer._passes.factor = None
        self._step.restore(self._outputs)

    def release(self):
        """Removes the graph's gradients from parameters, so that their memory is freed with the graph."""
        self._outputs = None
        self._optimizer.target.cleargrads()

    def _objects(self):
        """Returns the objects with addresses or values in the graph that ``unchanged()`` does not compare."""
        scaler, counter = self._optimizer._scaler, self._optimizer._counter
        objects = list(map(dict.get, self._owners, self._names))  # persistent values of links
        objects += [dropout_state(self._batch.applied), *counter.arrays]
        if self._ranks is not None:
            objects.append(self._ranks.memory)
        if self._preconditioner is not None:
            objects += self._preconditioner.held()
        return [*objects, *scaler.arrays, *scaler.numbers().values()]


def _alive(references):
    """Returns the variables that are neither gone nor deferred."""
    return [x for x in [reference() for reference in references] if "_node" in getattr(x, "__dict__", ())]


def _same(now, before):
    return now is before or not (_is_array(now) or _is_array(before) or now != before)


def _is_array(value):
    return isinstance(value, chainer.get_array_types())

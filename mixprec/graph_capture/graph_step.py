"""A step of the optimizer in a CUDA graph: what the host does before it is captured, and around each launch."""

import contextlib
import itertools
import operator

import chainer

from mixprec.functions.dropout import dropout_state
from mixprec.loss_scale import DynamicLossScale
from mixprec.optimizer.batch.device_batch import DeviceBatch
from mixprec.optimizer.device_form import SCALE_CONSTANTS

_HOOKS = operator.attrgetter("_local_link_hooks")  # None if there never was one


class GraphStep:
    """One captured step of a :class:`~mixprec.MixedPrecisionOptimizer`.

    A graph repeats launches with the addresses and numbers that they had. What moves from step to step is on the device
    already, but for hyperparameters, which :meth:`before_launch` uploads. Whether everything is still where it was is
    asked by :meth:`holds`.

    Args:
        optimizer: the wrapper, set up, with a batch on a device and a step behind it.
    """

    def __init__(self, optimizer):
        self._optimizer = optimizer
        self._structure = optimizer._masters.structure
        self._batched = optimizer._batched
        self._batch = self._batched.batch
        self._table = self._batch.graph_table()

    @contextlib.contextmanager
    def capturing(self):
        """Inside of the block a step is run while a graph captures what it asks of the device."""
        with self._batch.reading(self._table):
            yield
        self._changes, self._links = self._batched.changes, self._structure.links
        places = [(vars(link), name) for link in self._links for name in sorted(link._persistent)]
        self._owners, self._names = [owner for owner, _ in places], [name for _, name in places]
        self._held, self._hooks = self._objects(), local_hooks(self._links)
        self._copies = self._optimizer._statistics.copies  # the graph writes into them, whoever else does
        self._left = left(self._optimizer)

    def holds(self):
        """Whether all that the graph was captured with is still there: parameters, arrays, rules, hooks."""
        if self._optimizer._batched is not self._batched:  # setup() of another model
            return False
        if self._batched.changes is not self._changes or not self._batched.unchanged():
            return False
        if self._structure.links is not self._links or local_hooks(self._links) != self._hooks:
            return False
        now = self._objects()
        return all(map(operator.is_, now, self._held)) or all(map(_same, now, self._held))

    def before_launch(self):
        """Uploads hyperparameters that have changed, on the stream of the graph."""
        self._batched.before_launch()
        self._table.refresh()

    def after_launch(self):
        """Leaves all as an eager step does: a step is outstanding, gradients and variables are those of the graph."""
        self._batched.after_launch()
        self._optimizer._factor = None
        leave(self._left)

    def release(self):
        """Takes the gradients of the graph away from parameters, so that their memory becomes free with it."""
        self._left = None
        self._optimizer.target.cleargrads()

    def _objects(self):
        """What has addresses or values in the graph, beside what :class:`~mixprec.optimizer.changes.Changes` sees."""
        scaler = self._optimizer._scaler
        objects = list(map(dict.get, self._owners, self._names))  # persistent values of links
        objects += [dropout_state(self._batch.applied), *self._optimizer._steps.arrays]
        if isinstance(scaler, DynamicLossScale):
            objects += scaler.arrays
            objects += [getattr(scaler, name) for name in SCALE_CONSTANTS]
        return objects


def run(optimizer, lossfun, args, kwargs):
    """Runs a step eagerly, or while a graph captures; :func:`finish` is to be called afterwards, outside of a capture.

    Args:
        optimizer: the wrapper, set up.
        lossfun: loss function, called with ``args`` and ``kwargs``.
        args: tuple.
        kwargs: dict.
    """
    optimizer._step(lossfun, args, kwargs)


def finish(optimizer, lossfun, arguments, *, wait):
    """Ends a step: raises LossScaleExhausted if all steps overflow.

    Args:
        optimizer: the wrapper.
        lossfun: the loss function of the step.
        arguments: callable that returns its arguments, ``(args, kwargs)``.
        wait: whether the host may wait for the device when patience may have run out.
    """
    optimizer._patience.check(optimizer._masters, optimizer._statistics, lossfun, arguments, wait=wait)


def why_not(optimizer):
    """Returns why a graph cannot hold a step, as text, or ``None``."""
    batched = optimizer._batched
    reasons, others = batched.plan.reasons, batched.plan.others
    alone = next((name for name in reasons if name in others), None)
    if alone is not None:
        return f"{alone} is updated {reasons[alone]}"
    if not isinstance(batched.batch, DeviceBatch):
        return "no parameter is updated on a CUDA device"
    if batched.shares_rules:
        return "another optimizer has the same update rules, whose t it must know at once"
    return None


def is_under_way(optimizer):
    """Whether a step has begun before ``update``: by a forward pass that has moved running statistics."""
    return optimizer._statistics.are_saved


def plan(optimizer):
    """Returns an object, another one when parameters, rules or hooks have changed."""
    return optimizer._batched.changes


def local_hooks(links):
    """Returns the hooks that links have themselves."""
    return list(itertools.chain.from_iterable(map(dict.values, filter(None, map(_HOOKS, links)))))


def left(optimizer):
    """Returns what a step has left in the model, for :func:`leave`.

    Returns:
        ``parameters, gradients, notes on them, [(link, name, variable)]``: the variables are attributes such as
        ``loss`` of a classifier.
    """
    structure = optimizer._masters.structure
    params = [param for param in structure.params if param.array is not None]
    variables = [
        (link, name, value)
        for link in structure.links
        for name, value in vars(link).items()
        if isinstance(value, chainer.Variable) and not isinstance(value, chainer.Parameter)
    ]
    return params, [param.grad for param in params], [param._loss_scale for param in params], variables


def leave(left):
    """Gives parameters and links what they had, from :func:`left`."""
    params, gradients, notes, variables = left
    for param, gradient, note in zip(params, gradients, notes, strict=True):
        if param._grad is not gradient or param._grad_var is not None:
            param.grad = gradient
        if param._loss_scale is not note:
            param._loss_scale = note
    for link, name, value in variables:
        if vars(link).get(name) is not value:
            setattr(link, name, value)


def state(optimizer):
    """Returns every array that a step moves, by a name for messages, in a dict.

    Args:
        optimizer: the wrapper, set up, with a batch on a device and a step behind it.
    """
    optimizer._batched.before_launch()  # what it settles would come back with these arrays, and count twice
    arrays = {}
    for name, param, master in optimizer._masters.all_current():
        if param.array is not None:
            arrays[name] = param.array
            arrays[f"the master of {name}"] = master.array
            rule = param.update_rule
            for key, value in (rule.state or {}).items() if rule is not None else ():
                arrays[f"{key} of {name}"] = value
    for name, link in optimizer.target.namedlinks():
        arrays |= {f"{key} of {name}": link.__dict__.get(key) for key in link._persistent}
    batch = optimizer._batched.batch
    arrays |= {"t": batch.applied, "the random state of dropout": dropout_state(batch.applied)}
    arrays |= dict(zip(("skipped", "last_step_skipped"), optimizer._steps.arrays, strict=True))
    if isinstance(optimizer._scaler, DynamicLossScale):
        names = ("value", "clean", "hysteresis_left", "overflows_in_row")
        arrays |= {
            f"{name} of the loss scale": array for name, array in zip(names, optimizer._scaler.arrays, strict=True)
        }
    unique = {id(array): (name, array) for name, array in reversed(arrays.items()) if _is_array(array)}
    return dict(reversed(unique.values()))


def _same(now, before):
    return now is before or not (_is_array(now) or _is_array(before) or now != before)


def _is_array(value):
    return isinstance(value, chainer.get_array_types())

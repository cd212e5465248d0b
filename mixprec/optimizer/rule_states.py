"""The state of update rules: made before the first step of a plan, saved and loaded in Chainer's form.

:func:`serialize_optimizer` is called by the wrapper's ``serialize``.
"""

import contextlib
import warnings

import chainer
import numpy as np

from mixprec.backends.memory import in_order_of, is_dense, same_order
from mixprec.base.dtypes import is_half
from mixprec.base.messages import one_line

_ADAM = {(): "Adam", ("amsgrad",): "AMSGrad", ("adabound",): "AdaBound", ("amsgrad", "adabound"): "AMSBound"}


def init_states(namedparams, entries):
    """Initializes the states of rules, even if the first step is skipped; states in a batch get the layout it needs.

    Args:
        namedparams: ``[(name, parameter, master)]`` of the model.
        entries: the :class:`~mixprec.optimizer.batch.entries.Entry` of each parameter in the batch. Their states get
            the order of axes in memory that their parameter has: a file gives them in C order.
    """
    for _, param, master in namedparams:
        if param.array is not None and param.update_rule is not None and param.update_rule.enabled:
            param.update_rule._init_states(master)
    for entry in entries:
        master = entry.master.array
        for name in entry.formula.states if entry.rule is not None else ():
            state = entry.rule.state[name]
            if state.shape == master.shape and not (is_dense(state) and same_order(state, master)):
                entry.rule.state[name] = in_order_of(state, master)


def serialize_optimizer(optimizer, masters, serializer, own):
    """Saves or loads ``t``, ``epoch``, and ``t`` and state of each update rule, in Chainer's form.

    Args:
        optimizer: Chainer's optimizer, set up on ``masters``.
        masters: :class:`~mixprec.optimizer.masters.Masters`.
        serializer: Chainer serializer.
        own: the serializer for state that plain Chainer does not have.

    Raises:
        ValueError: the file was written with another optimizer. Nothing has changed.
    """
    _serialize_rule(optimizer, own)
    with _complete_states(masters, serializer):
        optimizer.serialize(serializer)


@contextlib.contextmanager
def _complete_states(masters, serializer):
    """A context in which Chainer saves or loads the wrapped optimizer: every rule has a state.

    Chainer cannot load a file in which a state is missing, and a rule has none before its first update. That may come
    late: steps may be skipped, its parameter may be uninitialized, or it may be disabled.

    Args:
        masters: :class:`~mixprec.optimizer.masters.Masters`.
        serializer: Chainer serializer, which loads or saves.
    """
    rules = [(master, rule) for _, master in masters.namedparams() if (rule := master.update_rule) is not None]
    uninitialized, frozen = [], []
    if isinstance(serializer, chainer.Deserializer):
        # Chainer allows the state of a disabled rule to be missing.
        uninitialized = [rule for master, rule in rules if master.array is None and rule.enabled]
    else:
        frozen = [rule for _, rule in rules if rule.state is None and not rule.enabled]
        for master, rule in rules:
            if master.array is not None:
                rule._init_states(master)
    for rule in uninitialized:
        rule.enabled = False
    try:
        yield
    finally:
        for rule in uninitialized:
            rule.enabled = True
        for rule in frozen:  # it needs none here, but a run in which it is updated loads it
            rule._state = None
    for _, rule in rules:
        for name, value in (rule.state or {}).items():
            if is_half(getattr(value, "dtype", None)):  # saved by an FP16 run of plain Chainer
                rule.state[name] = value.astype(np.float32)


def _serialize_rule(optimizer, serializer):
    """Saves the name of the wrapped optimizer's class, or compares it with the name in a file.

    States of different rules have the same names and shapes: without this check the velocity of one rule could be
    loaded as the velocity of another. A file without the name, such as a file of plain Chainer, is not checked.

    Args:
        optimizer: :class:`chainer.GradientMethod`.
        serializer: Chainer serializer, which loads or saves.

    Raises:
        ValueError: the file is of another optimizer.
    """
    here = _rule(optimizer)
    if not isinstance(serializer, chainer.Deserializer):
        serializer("rule", np.frombuffer(here.encode(), np.uint8))
        return
    try:
        written = serializer("rule", None)
    except (KeyError, ValueError):  # what Chainer's npz and HDF5 serializers raise for a name they do not find
        return
    if written is not None and (there := np.asarray(written).tobytes().decode(errors="replace")) != here:
        raise ValueError(
            f"the optimizer's state was saved by {one_line(there, 80)}, and this optimizer is {here}, for which it "
            f"means something else; use {one_line(there, 80)}, or load the model alone"
        )


def _rule(optimizer):
    """Returns the name of an optimizer, for Adam with its flags: AdamW and Adam with these flags have one name."""
    name = type(optimizer).__name__
    if not isinstance(optimizer, chainer.optimizers.Adam):
        return name
    flags = tuple(flag for flag in ("amsgrad", "adabound") if getattr(optimizer, flag))
    return _ADAM[flags] if name in _ADAM.values() else name + "".join(f", {flag}" for flag in flags)


def serialize_counters(serializer, counter, scaler):
    """Saves or loads the step counter and the loss scale; if a file has neither, the scale starts afresh.

    Args:
        serializer: Chainer serializer.
        counter: :class:`~mixprec.precision.step_counter.StepCounter`.
        scaler: the loss scale.

    Returns:
        Whether the file has them. If not, a warning was issued, and the caller needs a new counter.
    """
    try:
        counter.serialize(serializer)
        scaler.serialize(serializer["loss_scale"])
    except (KeyError, ValueError):  # what Chainer's npz and HDF5 serializers raise for a name they do not find
        scaler.reset()
        warnings.warn(
            f"the snapshot has no loss scale: it starts afresh at {scaler.value:g}, and skipped at 0", stacklevel=3
        )
        return False
    return True

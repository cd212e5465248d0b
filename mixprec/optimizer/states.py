"""The state of update rules in files, in Chainer's form."""

import contextlib

import chainer
import numpy as np

from mixprec.dtypes import is_half
from mixprec.messages import one_line

_ADAM = {(): "Adam", ("amsgrad",): "AMSGrad", ("adabound",): "AdaBound", ("amsgrad", "adabound"): "AMSBound"}


@contextlib.contextmanager
def complete_states(masters, serializer):
    """For the time in which Chainer saves or loads the wrapped optimizer: no state of a rule is missing.

    Chainer cannot load a file in which it is, and a rule has none before its first update, which may be long in coming:
    steps may be skipped, its parameter may be uninitialized, or it may be disabled.

    Args:
        masters: :class:`~mixprec.optimizer.masters.Masters`.
        serializer: of Chainer's; whether it loads or saves.
    """
    rules = [(master, rule) for _, master in masters.namedparams() if (rule := master.update_rule) is not None]
    uninitialized = []
    if isinstance(serializer, chainer.Deserializer):
        # Chainer lets the state of a disabled rule be missing.
        uninitialized = [rule for master, rule in rules if master.array is None and rule.enabled]
    else:
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
    for _, rule in rules:
        for name, value in (rule.state or {}).items():
            if is_half(getattr(value, "dtype", None)):  # from an FP16 run of plain Chainer
                rule.state[name] = value.astype(np.float32)


def serialize_rule(optimizer, serializer):
    """Saves the name of the wrapped optimizer's class, or checks it against that in a file.

    The states of rules have the same names and shapes: without it the velocity of one would be taken for that of
    another. A file without the name, such as one of plain Chainer, is not checked.

    Args:
        optimizer: :class:`chainer.GradientMethod`.
        serializer: of Chainer's; whether it loads or saves.

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
            f"the optimizer's state was saved by {one_line(there, 80)}, and this optimizer is {here}, to which it "
            f"means something else; use {one_line(there, 80)}, or load the model alone"
        )


def _rule(optimizer):
    """Returns the name of an optimizer, and of what Adam is with its flags, however that is written."""
    name = type(optimizer).__name__
    if not isinstance(optimizer, chainer.optimizers.Adam):
        return name
    flags = tuple(flag for flag in ("amsgrad", "adabound") if getattr(optimizer, flag))
    if name in _ADAM.values():
        return _ADAM[flags]
    return name + "".join(f", {flag}" for flag in flags)

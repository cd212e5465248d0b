"""Dropout (Srivastava et al. 2014), the same on every backend for the same random state."""

import contextlib
import os

import chainer
import numpy as np

from mixprec import arguments
from mixprec.backends import primitives_of
from mixprec.functions import checks
from mixprec.functions.node import Node

# By the primitives of a device. An array stays where it is for good: a graph that was captured goes on using it.
_states = {}
_forgotten = set()  # primitives whose next dropout draws a new seed


def dropout(x, ratio=0.5):
    """Sets a share of the elements to zero and divides the others by ``1 - ratio``, if ``chainer.config.train``.

    Which ones is drawn from one random state for each device, itself seeded from ``np.random`` at its first use: after
    ``np.random.seed`` and :func:`reset_dropout` a run repeats. ``F.forget`` would draw anew, as with Chainer's own.

    Args:
        x: any shape, in a storage dtype.
        ratio: from 0 to below 1, the share of zeros.

    Returns:
        Variable like ``x``; ``x`` itself outside of training.

    Raises:
        TypeError: x is not in a storage dtype.
        ValueError: ``ratio`` is out of range.
    """
    ratio = checks.number(Dropout.name, "ratio", ratio, 0.0, below=1.0)
    if not chainer.config.train:
        return chainer.as_variable(x)
    return Dropout(ratio).apply((x,))[0]


def reset_dropout():
    """Forgets the random states: the next dropout on each device draws a new seed from ``np.random``.

    A graph that was captured before goes on with the old one until then, as nobody draws in it.
    """
    _forgotten.update(_states)


@contextlib.contextmanager
def keeping_dropout():
    """After the block the random states are what they were before it."""
    before = {primitives: state.copy() for primitives, state in _states.items()}
    forgotten = set(_forgotten)
    try:
        yield
    finally:
        for primitives, state in before.items():
            _put(primitives, state)
        _forgotten.update(forgotten, _states.keys() - before.keys())


def serialize_dropout(serializer, devices):
    """Saves or loads the random states of devices, so that a resumed run goes on with the zeros it would have had.

    The file knows devices by their order, and loads on others, too. :class:`~mixprec.MixedPrecisionOptimizer` calls
    this for the devices of its model, as does a trainer's snapshot of it.

    Args:
        serializer: of Chainer's. A state that does not exist is not saved; one that is not in a file stays as it is.
        devices: of Chainer's, in the same order when saving and when loading.
    """
    arguments.instance("serializer", serializer, chainer.AbstractSerializer, "a chainer.AbstractSerializer")
    known = _states.keys() - _forgotten
    for place, device in enumerate(devices):
        name = f"dropout_state{place}"
        if isinstance(serializer, chainer.Deserializer):
            state = _loaded(serializer, name)
            if state is not None:
                _put(_primitives(device), device.send(np.array(state, np.uint64)))
        # Nobody asks for primitives if there is no dropout: that would load cuDNN for a run that does not use it.
        elif known and (primitives := _primitives(device)) in known:
            serializer(name, _states[primitives].copy())  # it moves on, and a file may be written in a thread


def dropout_state(array):
    """Returns the random state that the next dropout on the device of an array draws from, or ``None``."""
    if not _states:  # see serialize_dropout
        return None
    primitives = primitives_of(array)
    return None if primitives in _forgotten else _states.get(primitives)


def dropout_key(primitives, seed=None):
    """Returns what the next random numbers on a device are made from, an array there; its random state moves on.

    Args:
        primitives: of the device.
        seed: of its random state if it has none yet; ``None`` for one from ``np.random``.
    """
    return primitives.dropout_key(_state(primitives, seed))


def _loaded(serializer, name):
    try:
        return serializer(name, None)
    except (KeyError, ValueError):  # what Chainer's npz and HDF5 serializers raise for a name they do not find
        return None


def _primitives(device):
    return primitives_of(device.send(np.empty(0, np.uint64)))


def _state(primitives, seed):
    if primitives not in _states or primitives in _forgotten:
        seed = np.random.randint(0, 2**63 - 1, dtype=np.int64) if seed is None else seed
        _put(primitives, primitives.new_random_state(seed))
    return _states[primitives]


def _put(primitives, state):
    if primitives in _states:
        with chainer.using_device(chainer.backend.get_device_from_array(state)):
            _states[primitives][...] = state
    else:
        _states[primitives] = state
    _forgotten.discard(primitives)


def _leave_to_the_parent():
    """A process that shared the states would repeat the zeros of its parent; what is on a GPU it cannot even reach."""
    _states.clear()
    _forgotten.clear()


os.register_at_fork(after_in_child=_leave_to_the_parent)


class Dropout(Node):
    """See :func:`dropout`."""

    name = "dropout"
    image_inputs = (0,)

    def __init__(self, ratio):
        self._ratio = ratio

    def check(self, x):
        checks.dtype(self.name, "x", x)

    def compute(self, primitives, x):
        self._key = dropout_key(primitives_of(x))
        return (primitives.dropout(self.dense("x", x), self._ratio, self._key),)

    def gradients(self, primitives, indexes, dy):
        return (primitives.dropout(dy, self._ratio, self._key),)

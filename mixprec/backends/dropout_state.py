"""The random states of dropout: one array for each device, which captured graphs keep using.

:func:`mixprec.functions.dropout` and the dropout of plain Chainer on cuDNN (:mod:`mixprec.bridge.dropout`) draw from
them; :class:`~mixprec.MixedPrecisionOptimizer` saves them with its own state.
"""

import contextlib
import os
import threading

import chainer
import numpy as np

from mixprec.backends import primitives_of
from mixprec.backends.transfers import loaded
from mixprec.base import arguments
from mixprec.base.scoped import scoped

# By the primitives of a device. An array never moves: captured graphs keep using it.
_states = {}
_forgotten = set()  # primitives whose next dropout draws a new seed


class _Tapes(threading.local):
    """State of this thread.

    Attributes:
        recorded: tuple of the lists of :func:`recording_keys`.
        repeated: iterator of :func:`repeating_keys`, or ``None``.
    """

    recorded = ()
    repeated = None


_tapes = _Tapes()


def reset_dropout():
    """Forgets the random states: the next dropout on each device draws a new seed from ``np.random``.

    A graph captured before uses the old state until then.

    Example:
        >>> import chainer, numpy as np
        >>> from mixprec import functions
        >>> def run():
        ...     np.random.seed(0)
        ...     functions.reset_dropout()
        ...     with chainer.using_config("train", True):
        ...         return functions.dropout(np.ones(100, np.float16)).array
        >>> bool((run() == run()).all())
        True
    """
    _forgotten.update(_states)


@contextlib.contextmanager
def keeping_dropout():
    """Restores the random states after the block."""
    before = {primitives: state.copy() for primitives, state in _states.items()}
    forgotten = set(_forgotten)
    try:
        yield
    finally:
        for primitives, state in before.items():
            _put(primitives, state)
        _forgotten.update(forgotten, _states.keys() - before.keys())


def serialize_dropout(serializer, devices):
    """Saves or loads the random states of devices, so that a resumed run has the same zeros as without a stop.

    The file identifies devices by their order, and loads on other devices, too.
    :class:`~mixprec.MixedPrecisionOptimizer` calls this for the devices of its model, as does a trainer's snapshot of
    it.

    Args:
        serializer: Chainer's serializer. A state that does not exist is not saved; a state missing in the file stays.
        devices: Chainer's devices, in the same order when saving and when loading.

    Example:
        >>> import chainer, numpy as np
        >>> from mixprec import functions
        >>> x, devices, file = np.ones(100, np.float16), [chainer.get_device("@numpy")], {}
        >>> with chainer.using_config("train", True):
        ...     _ = functions.dropout(x)
        ...     functions.serialize_dropout(chainer.serializers.DictionarySerializer(file), devices)
        ...     following = functions.dropout(x).array
        ...     functions.serialize_dropout(chainer.serializers.NpzDeserializer(file), devices)
        ...     bool((functions.dropout(x).array == following).all())
        True
    """
    arguments.instance("serializer", serializer, chainer.AbstractSerializer, "a chainer.AbstractSerializer")
    known = _states.keys() - _forgotten
    for index, device in enumerate(devices):
        name = f"dropout_state{index}"
        if isinstance(serializer, chainer.Deserializer):
            state = loaded(serializer, name)
            if state is not None:
                _put(_primitives(device), device.send(np.array(state, np.uint64)))
        # Without dropout no primitives are looked up: that would load cuDNN for a run that does not use it.
        elif known and (primitives := _primitives(device)) in known:
            serializer(name, _states[primitives].copy())  # it moves on, and a file may be written in a thread


def dropout_state(array):
    """Returns the random state that the next dropout on the device of an array draws from, or ``None``."""
    if not _states:  # see serialize_dropout
        return None
    primitives = primitives_of(array)
    return None if primitives in _forgotten else _states.get(primitives)


def dropout_key(primitives, seed=None):
    """Returns the key of the next random numbers on a device, an array there, and advances its random state.

    Args:
        primitives: primitives of the device.
        seed: seed of its random state if it has none yet; ``None`` for a seed from ``np.random``.
    """
    return _next(primitives, seed, lambda state: (None, primitives.dropout_key(state)))[1]


def dropout_next(primitives, x, ratio, seed=None):
    """Returns ``(y, key)``: a dropout of ``x``, and its key, as of :func:`dropout_key`.

    Args:
        primitives: primitives of the device.
        x: C-contiguous array there.
        ratio: share of zeros.
        seed: see :func:`dropout_key`.
    """
    y, key = _next(primitives, seed, lambda state: primitives.dropout_next(x, ratio, state))
    return primitives.dropout(x, ratio, key) if y is None else y, key


def _next(primitives, seed, draw):
    """Returns the result of ``draw``, ``(y, key)``, for the random state, or ``(None, key)`` with a repeated key."""
    y = None
    if _tapes.repeated is None:
        draws = seed is None and _has_to_be_made(primitives)
        y, key = draw(_state(primitives, seed))
        entry = key, draws
    else:
        entry = next(_tapes.repeated, None)
        if entry is None:
            raise RuntimeError("mixprec.recompute: the repeated call has more dropout than the first call")
        if entry[1]:
            _new_seed()
    for tape in _tapes.recorded:
        tape.append(entry)
    return y, entry[0]


@contextlib.contextmanager
def recording_keys():
    """Gives a list that collects the results of :func:`dropout_key` in this thread, for :func:`repeating_keys`."""
    tape = []
    with scoped(_tapes, recorded=(*_tapes.recorded, tape)):
        yield tape


def repeating_keys(tape):
    """Inside the block, dropout drops the same elements as while the list was recorded.

    The random states do not move.
    """
    return scoped(_tapes, repeated=iter(tape))


def _primitives(device):
    return primitives_of(device.send(np.empty(0, np.uint64)))


def _state(primitives, seed):
    if _has_to_be_made(primitives):
        _put(primitives, primitives.new_random_state(_new_seed() if seed is None else seed))
    return _states[primitives]


def _has_to_be_made(primitives):
    return primitives not in _states or primitives in _forgotten


def _new_seed():
    return np.random.randint(0, 2**63 - 1, dtype=np.int64)


def _put(primitives, state):
    if primitives in _states:
        with chainer.using_device(chainer.backend.get_device_from_array(state)):
            _states[primitives][...] = state
    else:
        _states[primitives] = state
    _forgotten.discard(primitives)


def _leave_to_the_parent():
    """Clears the states after a fork: a child would repeat its parent's zeros, and cannot reach its arrays on a GPU."""
    _states.clear()
    _forgotten.clear()


os.register_at_fork(after_in_child=_leave_to_the_parent)

"""The state that differs between ranks: loader position, random state of dropout, running statistics, sums to log.

With several ranks the trainer has a :class:`RankStates` among its extensions. All snapshots are written inside
:meth:`RankStates.in_files`. The training command calls :func:`own` with the contents of a snapshot.
"""

import contextlib
import dataclasses
import json

import chainer
import numpy as np
from chainer import serializers
from chainer.backends import cuda
from chainer.training import extension

from mixprec.app.parts.stages import epochs_of
from mixprec.backends.dropout_state import serialize_dropout
from mixprec.base.scoped import scoped
from mixprec.optimizer.batch.saved_arrays import overwritten
from mixprec.training.averaging import average_of, averaged_weights
from mixprec.training.snapshots import SnapshotError
from mixprec.training.unsaved_triggers import NeverCalled

_PREFIX = "extensions/ranks/"
_ITERATOR = "updater/iterator:main/"
_DROPOUT = "updater/optimizer:main/mixprec/dropout_state"
_CONFIG = "extensions/settings/config"
_LOG = "extensions/LogReport/_summary/"
# Settings of an iterator that follow from ranks.
_DIVISION = ("shard", "num_shards", "batch_size", "batches_before", "shuffle_window")


class RankStates(NeverCalled):
    """Collects the states of all ranks: their mean for evaluation, all of them for a snapshot.

    Each rank moves the running statistics by its own images. Their mean over ranks equals the statistics of one
    process, as a moving average is linear; synchronized statistics are equal anyway, and their mean is the same bit for
    bit. The mean is evaluated, and a snapshot holds it under the model's names. Ranks continue with their own
    statistics, which the snapshot holds, too, so that the time of writing does not matter.

    Args:
        ranks: from :mod:`mixprec.distributed.processes`.
    """

    name = "ranks"

    def __init__(self, ranks):
        self._ranks = ranks
        self._gathered = None

    def serialize(self, serializer):
        """Saves the gathered states; :func:`own` loads them."""
        if not isinstance(serializer, chainer.Deserializer):
            serializer("number", self._ranks.size)
            for rank, states in enumerate(self._gathered or ()):
                for name, value in states.items():
                    serializer(f"{rank}/{name}", value)

    @contextlib.contextmanager
    def averaged(self, arrays):
        """Inside the block, arrays of running statistics are their mean over ranks; afterwards they are restored.

        Args:
            arrays: list of floating-point arrays, of the same shapes on all ranks.
        """
        with overwritten(() if self._ranks.size == 1 or not arrays else self._means(arrays)):
            yield

    def _means(self, arrays):
        """Yields pairs of an array and its mean over ranks, on the array's device."""
        mean = self._ranks.mean(np.concatenate([cuda.to_cpu(array).astype(np.float64).ravel() for array in arrays]))
        ends = np.cumsum([array.size for array in arrays])
        for array, part in zip(arrays, np.split(mean, ends[:-1]), strict=True):
            mine = part.reshape(array.shape).astype(array.dtype)
            yield array, chainer.backend.get_device_from_array(array).send(mine)

    @contextlib.contextmanager
    def evaluated(self, trainer):
        """Inside the block, the model of a trainer is in the state for evaluation."""
        model = trainer.updater.get_optimizer("main").target
        with averaged_weights(trainer), self.averaged(list(statistics(model).values())):
            yield

    @contextlib.contextmanager
    def in_files(self, trainer):
        """Inside the block, a trainer is in the state for a snapshot. All ranks call it; rank 0 writes."""
        if self._ranks.size == 1:
            yield
            return
        arrays = _statistics(trainer)
        gathered = self._ranks.gather_on_first(_states(trainer, arrays))
        with scoped(self, _gathered=gathered), self.averaged(list(arrays.values())):
            yield


class JointSnapshot(extension.Extension):
    """A snapshot extension of all ranks, which jointly make the snapshot that rank 0 writes.

    Args:
        snapshot: from :func:`mixprec.training.snapshots.extension`.
        states: :class:`RankStates`.
        is_first: whether this rank writes.
    """

    default_name = "_Snapshot"  # as Chainer's: its trigger is found in the snapshot of one process
    priority = -100

    def __init__(self, snapshot, states, is_first):
        self._snapshot, self._states, self._is_first = snapshot, states, is_first
        self.filename, self.writer = snapshot.filename, snapshot.writer

    def initialize(self, trainer):
        """As Chainer's."""
        if self._is_first:
            self._snapshot.initialize(trainer)

    def __call__(self, trainer):
        with self._states.in_files(trainer):
            if self._is_first:
                self._snapshot(trainer)
            else:
                self.writer.written = self.filename.format(trainer)

    def finalize(self):
        """As Chainer's."""
        self._snapshot.finalize()


def statistics(model):
    """Returns the floating-point arrays that links keep beside parameters, by their names in a file of the model."""
    found = {}
    for path, link in model.namedlinks():
        for name in sorted(link._persistent):
            value = link.__dict__.get(name)
            if isinstance(value, chainer.get_array_types()) and value.dtype.kind == "f":
                found[f"{path.strip('/')}/{name}".lstrip("/")] = value
    return found


def own(arrays, config, images, ranks, iterator, path):
    """Extracts this rank's state from a snapshot.

    With the same number of ranks, each continues with its own state. Another number continues at the same position in
    the images, with averaged statistics, and new random numbers on new ranks.

    Args:
        arrays: dict from :func:`mixprec.training.snapshots.read`; it is changed.
        config: :class:`mixprec.app.config.Config`.
        images: number of training images.
        ranks: from :mod:`mixprec.distributed.processes`.
        iterator: the new one over the training images.
        path: snapshot file, for messages.

    Returns:
        dict: the arrays.

    Raises:
        SnapshotError: the position is in the middle of a batch of this number of ranks.
    """
    size = number_of_ranks(arrays)
    states = {name: arrays.pop(name) for name in list(arrays) if name.startswith(_PREFIX)}
    prefix = f"{_PREFIX}{ranks.rank}/"
    mine = {name[len(prefix) :]: value for name, value in states.items() if name.startswith(prefix)}
    if size == ranks.size:
        return arrays | mine
    if ranks.rank and f"{_LOG}_names" in arrays:
        arrays[f"{_LOG}_names"] = np.asarray("[]")  # nothing is summed up yet
    for name in [name for name in arrays if name.startswith(_DROPOUT)]:
        if ranks.rank:
            del arrays[name]
        if name in mine:
            arrays[name] = mine[name]
    _move(arrays, config, images, size, ranks, iterator, path)
    return arrays


def number_of_ranks(arrays):
    """Returns the number of ranks of a snapshot."""
    return int(arrays.get(f"{_PREFIX}number", 1))


def _move(arrays, config, images, size, ranks, iterator, path):
    """Converts the iterator's position in a snapshot to another number of ranks."""
    delivered = int(arrays.get(f"{_ITERATOR}delivered", 0))
    settings = json.loads(arrays[f"{_ITERATOR}settings"].tobytes()) if f"{_ITERATOR}settings" in arrays else {}
    then, now = epochs_of(_as_then(config, arrays, settings), images, size), epochs_of(config, images, ranks.size)
    position = now.delivered(then, delivered)
    if position is None:
        stage = then.of(delivered)
        then, now = then.epochs[stage], now.epochs[stage]
        raise SnapshotError(
            f"{path}: of {size} ranks with {then.batch_size} images each, after "
            f"{delivered - then.begin(then.epoch(delivered))} batches of an epoch, and no batch of {ranks.size} ranks "
            f"with {now.batch_size} images each ends there: continue with {size} ranks, or from a snapshot at the end "
            "of an epoch"
        )
    arrays[f"{_ITERATOR}delivered"] = np.asarray(position)
    if settings:
        if len(now.epochs) > 1:
            iterator.skip_to(position)
        now_settings = json.loads(_saved(iterator)["settings"].tobytes())
        for name in _DIVISION:
            settings.pop(name, None)
            settings |= {name: now_settings[name]} if name in now_settings else {}
        arrays[f"{_ITERATOR}settings"] = np.frombuffer(json.dumps(settings).encode(), np.uint8)
        arrays[f"{_ITERATOR}state"] = np.zeros(0, np.uint8)


def _as_then(config, arrays, settings):
    """The config with the batch sizes of a snapshot; ``settings`` belong to its iterator."""
    saved = json.loads(arrays[_CONFIG].tobytes()) if _CONFIG in arrays else {}
    name, key = "training.batch_size", "progressive.batch_sizes"
    batch_size = saved.get(name, settings.get("batch_size", config.training.batch_size))
    earlier = tuple(saved.get(key, config.progressive.batch_sizes))
    return dataclasses.replace(
        config,
        training=dataclasses.replace(config.training, batch_size=batch_size),
        progressive=dataclasses.replace(config.progressive, batch_sizes=earlier),
    )


def _saved(iterator):
    serializer = serializers.DictionarySerializer()
    iterator.serialize(serializer)
    return serializer.target


def _statistics(trainer):
    """The statistics of the model and their moving averages, by their names in a snapshot."""
    found = statistics(trainer.updater.get_optimizer("main").target)
    average = average_of(trainer)
    averages = {} if average is None else average.averages_of(found)
    return {f"updater/model:main/{name}": array for name, array in found.items()} | {
        f"extensions/average/average/{name}": array for name, array in averages.items()
    }


def _states(trainer, arrays):
    """Returns the state of this rank alone, by the names in a snapshot; arrays are copied to the host."""
    optimizer, iterator = trainer.updater.get_optimizer("main"), trainer.updater.get_iterator("main")
    serializer = serializers.DictionarySerializer()
    iterator.serialize(serializer["updater"]["iterator:main"])
    devices = dict.fromkeys(param.device for param in optimizer.target.params())
    serialize_dropout(serializer["updater"]["optimizer:main"]["mixprec"], devices)
    trainer.get_extension("LogReport")._summary.serialize(serializer["extensions"]["LogReport"]["_summary"])
    trainer.get_extension("Stopping").serialize(serializer["extensions"]["Stopping"])
    return serializer.target | {name: np.array(cuda.to_cpu(array)) for name, array in arrays.items()}

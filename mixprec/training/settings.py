"""The settings of a run in its snapshots: a run that goes on with others says so, or is refused."""

import json

import numpy as np
from chainer import Deserializer
from chainer.training import extension

from mixprec import config as configs
from mixprec.training.snapshots import SnapshotError, read

# What the rest of a snapshot is of. The images, their order and what is done to them are compared by the iterator.
_FIXED = {
    "model.arch": "its weights are those of another network",
    "model.classes": "its weights are those of another network",
    "optimizer.name": "its state means something else to another optimizer",
    "data.synthetic_images": "its place in the data is counted in batches",
    "training.batch_size": "its place in the data is counted in batches",
    "training.accumulate": "its log counts steps",
    "training.seed": "its place in the data is one in an order that the seed gives",
}
_AVERAGE = "training.ema_decay"
_FIRST = ("loss_scale.init", "model.zero_init_residual")


class Settings(extension.Extension):
    """Keeps the config in snapshots, for :func:`compare`, and what has changed in it from one process to the next.

    Args:
        config: :class:`mixprec.config.Config`.

    Attributes:
        changes: list of str, a line for each change, since the beginning of the run.
    """

    name = "settings"

    def __init__(self, config):
        self._config = config
        self.changes = []

    @staticmethod
    def trigger(trainer):
        """Never fires."""
        return False

    def __call__(self, trainer):
        """Does nothing."""

    def serialize(self, serializer):
        """Saves the config and its changes, as JSON; loads the changes, as a run has the config that it is given."""
        if isinstance(serializer, Deserializer):
            self.changes = _from_json(serializer("changes", None))
        else:
            serializer("config", _to_json(configs.flat(self._config)))
            serializer("changes", _to_json(self.changes))


def compare(path, config):
    """Compares a config with the one that a snapshot was written with.

    Args:
        path: snapshot file.
        config: :class:`mixprec.config.Config` of the run that is to go on from it.

    Returns:
        list of str: ``"optimizer.lr 0.05 -> 0.5"`` for each key that differs.

    Raises:
        SnapshotError: a key differs that must not; or the snapshot cannot be read, or does not hold its settings.
    """
    name = f"extensions/{Settings.name}/config"
    try:
        then = _from_json(read(path, [name])[name])
    except SnapshotError as error:
        if not isinstance(error.__cause__, KeyError):
            raise
        raise SnapshotError(
            f"{path}: does not hold its settings, as snapshots of earlier versions and other programs; give another "
            "--out to begin anew"
        ) from error
    except ValueError as error:
        raise SnapshotError(f"{path}: corrupt snapshot (its settings are not JSON)") from error
    now = configs.flat(config)
    different = {key: (then.get(key), now.get(key)) for key in {**now, **then} if then.get(key) != now.get(key)}
    lines = []
    for key, (old, new) in different.items():
        why = _FIXED.get(key)
        if key == _AVERAGE and None in (old, new):
            why = "averages begin with the run"
        if why is not None:
            raise SnapshotError(
                f"{path}: {key} is {configs.shown(new)} here, {configs.shown(old)} in the snapshot, and cannot change: "
                f"{why}; set it back, or give another --out"
            )
        is_past = key in _FIRST and "loss_scale.mode" not in different
        note = ", which has no effect: it is for the start of a run" if is_past else ""
        lines.append(f"{key} {configs.shown(old)} -> {configs.shown(new)}{note}")
    return lines


def _to_json(value):
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def _from_json(array):
    array = np.asarray(array)
    if array.dtype != np.uint8:
        raise ValueError("no text")
    return json.loads(array.tobytes())

"""The settings of a run in its snapshots: a resumed run reports differences, or is refused.

The training command calls :func:`compare` before it resumes; the trainer has :class:`Settings` among its extensions.
"""

import json

import numpy as np
from chainer import Deserializer

from mixprec.app import config as configs
from mixprec.base.optimizer_names import WITH_AVERAGE
from mixprec.training.snapshots import SnapshotError, read
from mixprec.training.unsaved_triggers import NeverCalled

# Changes of these keys would make the rest of a snapshot invalid. The iterator itself compares the images, their order
# and their augmentation.
_FIXED = {
    "model.arch": "its weights belong to another network",
    "model.classes": "its weights belong to another network",
    "optimizer.name": "its state belongs to another optimizer",
    "data.synthetic_images": "its position in the data is counted in batches",
    "training.batch_size": "its position in the data is counted in batches",
    "training.accumulation_steps": "its log counts steps",
    "training.seed": "its position in the data refers to an order that the seed gives",
    "progressive.until": "its position in the data is counted in batches",
    "progressive.sizes": "its position in the data refers to images of this size",
    "progressive.batch_sizes": "its position in the data is counted in batches",
}
# Keys that may change with the number of ranks.
_WITH_RANKS = ("training.batch_size", "training.accumulation_steps", "progressive.batch_sizes")
_AVERAGE, _MOMENTUM = "training.ema_decay", "optimizer.momentum"
_CONFIG, _RANKS = "extensions/settings/config", "extensions/settings/ranks"
_FIRST = ("loss_scale.init_scale", "loss_scale.search", "model.weights", "model.zero_init_residual")


class Settings(NeverCalled):
    """Keeps the config in snapshots, for :func:`compare`, and a list of its changes from one process to the next.

    Args:
        config: :class:`mixprec.app.config.Config`.
        ranks: number of processes that train together.

    Attributes:
        changes: list of str, a line for each change, since the beginning of the run.
    """

    name = "settings"

    def __init__(self, config, ranks=1):
        self._config, self._ranks = config, ranks
        self.changes = []

    def serialize(self, serializer):
        """Saves the config and its changes, as JSON; loads only the changes, as a run uses its own config."""
        if isinstance(serializer, Deserializer):
            self.changes = _from_json(serializer("changes", None))
        else:
            serializer("config", _to_json(configs.flat(self._config)))
            serializer("changes", _to_json(self.changes))
            if self._ranks > 1:
                serializer("ranks", self._ranks)


def compare(path, config, ranks=1):
    """Compares a config with the config of a snapshot.

    Args:
        path: snapshot file.
        config: :class:`mixprec.app.config.Config` of the run that resumes from it.
        ranks: number of processes of that run.

    Returns:
        list of str: ``"optimizer.lr 0.05 -> 0.5"`` for each key that differs, and ``"ranks 1 -> 2"``.

    Raises:
        SnapshotError: a key differs that must not differ; or the snapshot cannot be read, or has no settings.
    """
    # A version without a key behaved like its default.
    then, now = configs.defaults() | _settings(path), configs.flat(config)
    different = {key: (then.get(key), now.get(key)) for key in {**now, **then} if then.get(key) != now.get(key)}
    found = _member(path, _RANKS)
    ranks_then = 1 if found is None else int(found)
    lines = [] if ranks == ranks_then else [f"ranks {ranks_then} -> {ranks}"]
    for key, (old, new) in different.items():
        why = None if ranks != ranks_then and key in _WITH_RANKS else _FIXED.get(key)
        if key == _AVERAGE and None in (old, new):
            why = "averages begin with the run"
        if key == _MOMENTUM and config.optimizer.name in WITH_AVERAGE:
            why = "the average is computed with it"
        if why is not None:
            raise SnapshotError(
                f"{path}: {key} is {configs.shown(new)} here, {configs.shown(old)} in the snapshot, and cannot change: "
                f"{why}; set it back, or give another --out"
            )
        is_past = key in _FIRST and "loss_scale.mode" not in different
        note = ", which has no effect: it is for the start of a run" if is_past else ""
        lines.append(f"{key} {configs.shown(old)} -> {configs.shown(new)}{note}")
    return lines


def _settings(path):
    """Returns the flat config of a snapshot."""
    array = _member(path, _CONFIG)
    if array is None:
        raise SnapshotError(
            f"{path}: has no settings, like snapshots of other programs; give another --out to start again, with "
            "model.weights to start from weights"
        )
    try:
        return _from_json(array)
    except ValueError as error:
        raise SnapshotError(f"{path}: corrupt snapshot (its settings are not JSON)") from error


def _member(path, name):
    try:
        return read(path, [name])[name]
    except SnapshotError as error:
        if isinstance(error.__cause__, KeyError):
            return None
        raise


def _to_json(value):
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def _from_json(array):
    array = np.asarray(array)
    if array.dtype != np.uint8:
        raise ValueError("no text")
    return json.loads(array.tobytes())

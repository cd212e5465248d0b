"""The log as TensorBoard events, of a run and of one that was resumed."""

import importlib.util

import numpy as np
import pytest
from chainer import training
from chainer.training import extensions

from mixprec.training import tensorboard


class Updater:
    """Two iterations an epoch; nothing is computed."""

    def __init__(self, iteration=0):
        self.iteration = iteration

    epoch = property(lambda self: self.iteration // 2)
    epoch_detail = property(lambda self: self.iteration / 2)
    previous_epoch_detail = property(lambda self: max(self.iteration - 1, 0) / 2)

    def update(self):
        self.iteration += 1

    def connect_trainer(self, trainer):
        pass

    def get_all_optimizers(self):
        return {}

    def finalize(self):
        pass


def _run(out, first, last, entries=()):
    trainer = training.Trainer(Updater(first), (last, "iteration"), out=str(out))
    log = extensions.LogReport(trigger=(2, "iteration"), log_name=None)
    log._log = list(entries)
    trainer.extend(
        lambda trainer: trainer.observation.update({"main/loss": np.float32(trainer.updater.iteration)}),
        name="loss",
        trigger=(1, "iteration"),
        priority=300,
    )
    trainer.extend(log)
    trainer.extend(tensorboard.TensorBoard(log), trigger=(2, "iteration"))
    trainer.run()
    return log.log


def _read(folder):
    """``(steps from which earlier events are void, [(step, name, value)])`` of all files, the oldest first.

    The format: https://github.com/tensorflow/tensorboard/blob/master/tensorboard/compat/proto/event.proto; a record is
    its length (8 bytes), a check sum (4), the message, and another check sum (4).
    """
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    purged, scalars = [], []
    for path in sorted((folder / tensorboard.FOLDER).iterdir(), key=lambda path: path.stat().st_mtime_ns):
        content = path.read_bytes()
        while content:
            size = int.from_bytes(content[:8], "little")
            event = Event.FromString(content[12 : 12 + size])
            content = content[16 + size :]
            if event.session_log.status == SessionLog.START:
                purged.append(event.step)
            scalars += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
    return purged, scalars


def test_events_are_the_entries_of_the_log(tmp_path):
    pytest.importorskip("tensorboardX", reason="needs tensorboardX: pip install -e '.[tensorboard]'")
    log = _run(tmp_path, 0, 5)
    assert [entry["main/loss"] for entry in log] == [1.5, 3.5]
    assert _read(tmp_path) == ([], [(2, "main/loss", 1.5), (4, "main/loss", 3.5)])
    # Killed after step 5; the last snapshot was that of step 3.
    _run(tmp_path, 3, 6, log[:1])
    purged, scalars = _read(tmp_path)
    assert purged == [4]
    assert scalars[2:] == [(4, "main/loss", 4.0), (6, "main/loss", 5.5)]


def test_a_missing_package_is_said_in_one_line(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert tensorboard.missing() == 'needs the package tensorboardX: pip install -e ".[tensorboard]"'

"""Detects that a run has diverged: losses, weights and running statistics from which no run can recover.

:class:`SoundLosses` is an extension of the trainer. It is checked before snapshots are written, and by the training
command before it writes ``model.npz``.
"""

import json
import math

import chainer
import numpy as np
from chainer import Deserializer

from mixprec.backends.transfers import to_host
from mixprec.training.log_report import value_of
from mixprec.training.snapshots import contents
from mixprec.training.unsaved_triggers import EachIteration

_LOSSES = {"main/loss": "the training loss", "validation/main/loss": "the validation loss"}
# A loss of a classifier is a difference of logits: with a larger loss the logits do not fit into float16, nor do larger
# weights. In float32 and bfloat16 a network that has diverged may stay finite for long.
LARGEST = float(np.finfo(np.float16).max)
# These need only be finite, as variances of images in 0..255 are large. Other values of a link may be inf by design.
_STATISTICS = ("avg_mean", "avg_var")


class Diverged(RuntimeError):
    """Training ended with a useless network; the message is one line."""


class SoundLosses(EachIteration):
    """Checks that the network is sound: losses of the last step, weights and running statistics are finite.

    A loss must also be at most 65504, the largest number of float16, and so must weights. It reads from a GPU only when
    it is asked or saved. All ranks ask together.

    Args:
        ranks: from :mod:`mixprec.distributed.processes`.
    """

    name = "losses"
    priority = -50  # after the evaluation, before snapshots

    def __init__(self, ranks):
        self._ranks = ranks
        self._values = {}  # losses of the last step, by name
        self._has_said = False

    def __call__(self, trainer):
        self._values = {name: value_of(trainer.observation[name]) for name in _LOSSES if name in trainer.observation}

    def allow_snapshot(self, trainer):
        """Whether the state of a trainer is worth a snapshot; if not, rank 0 prints the reason, once per process."""
        self(trainer)
        problem = self._problem(trainer)
        if problem is not None and self._ranks.is_first and not self._has_said:
            self._has_said = True
            print(f"iteration {trainer.updater.iteration}: no snapshot is written while {problem}", flush=True)
        return problem is None

    def check_end(self, trainer):
        """Must be called at the end of training, while the model has the weights to be saved.

        Raises:
            Diverged: the weights are useless; raised on all ranks.
        """
        steps, problem, smaller = trainer.updater.iteration, self._problem(trainer), "optimizer.lr"
        if problem is None and steps and not trainer.updater.get_optimizer("main").t:
            problem = "all steps were skipped, as gradients were not finite"
            smaller = "loss_scale.init_scale or optimizer.lr"
        if problem is not None:
            raise Diverged(
                f"training has diverged: at its end, in iteration {steps}, {problem}; no model.npz is written; try a "
                f"smaller {smaller}"
            )

    def _problem(self, trainer):
        """Returns the problem, as text, the same on all ranks, or ``None``."""
        found = self._of_losses() or _of_weights(trainer.updater.get_optimizer("main").target)
        return next(filter(None, self._ranks.gather(found)), None)

    def _of_losses(self):
        for name, value in self._losses().items():
            if not math.isfinite(value):
                return f"{_LOSSES[name]} is {value}"
            if value > LARGEST:
                return f"{_LOSSES[name]} is {value:.3g}, which is more than {LARGEST:.0f}"
        return None

    def _losses(self):
        return {name: float(to_host(value)) for name, value in self._values.items()}

    def serialize(self, serializer):
        """Saves or loads the losses: a finished run has no further step to get them from."""
        if not isinstance(serializer, Deserializer):
            serializer("last", json.dumps(self._losses()))
        else:
            self._values = json.loads(str(serializer("last", None)))


def _of_weights(model):
    """Returns the first unsound weights or running statistics, as text, or ``None``."""
    params = {name.lstrip("/") for name, _ in model.namedparams()}
    values, sound = {}, {}
    for name, value in sorted(contents(model).items()):
        limit = LARGEST if name in params else math.inf if name.rpartition("/")[2] in _STATISTICS else None
        if limit is not None and isinstance(value, chainer.get_array_types()):
            xp = chainer.backend.get_array_module(value)
            values[name], sound[name] = value, (xp.isfinite(value) & (xp.abs(value) <= limit)).all()
    device = chainer.backend.get_device_from_array(*sound.values())
    if not sound or to_host(device.xp.stack(list(map(device.send, sound.values()))).all()):  # one read
        return None
    name = next(name for name in sound if not to_host(sound[name]))
    largest = to_host(abs(values[name]).max())
    words = f"contains {largest:.3g}, which is more than {LARGEST:.0f}" if math.isfinite(largest) else "is not finite"
    return f"{name.removeprefix('predictor/')} {words}"

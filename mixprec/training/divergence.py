"""What tells that a run has diverged: losses, weights and running statistics that no run can go on from.

The trainer has a :class:`SoundLosses` among its extensions. Snapshots ask it before they are written, and the training
command before it writes ``model.npz``.
"""

import json
import math

import chainer
import numpy as np
from chainer import Deserializer
from chainer.training import extension

from mixprec.backends.transfers import to_host
from mixprec.training.snapshots import contents

_LOSSES = {"main/loss": "the training loss", "validation/main/loss": "the validation loss"}
# A loss of a classifier is a difference of logits: with a larger one they do not fit into float16. In float32 and
# bfloat16 a network that has diverged may stay below inf for long.
LARGEST_LOSS = float(np.finfo(np.float16).max)
_STATISTICS = ("avg_mean", "avg_var")  # other values that a link keeps may be inf by design, as a mask is


class Diverged(RuntimeError):
    """Training came to its end with a network that is worth nothing; the message is one line."""


class SoundLosses(extension.Extension):
    """Knows whether the network is sound: losses of the last step, weights and running statistics are finite.

    A loss must also be at most 65504, the largest number of float16. It reads from a GPU only when it is asked, or
    saved. All ranks ask together.

    Args:
        ranks: of :mod:`mixprec.training.processes`.
    """

    name = "losses"
    priority = -50  # after the evaluation, before snapshots

    def __init__(self, ranks):
        self._ranks = ranks
        self._values = {}  # of the last step, by name
        self._has_said = False

    @staticmethod
    def trigger(trainer):
        """Fires always; Chainer's would keep in snapshots when it was last called."""
        return True

    def __call__(self, trainer):
        self._values = {name: _value(trainer.observation[name]) for name in _LOSSES if name in trainer.observation}

    def allow_snapshot(self, trainer):
        """Whether the state of a trainer is worth a snapshot; if it is not, rank 0 says why, once in a process."""
        self(trainer)
        problem = self._problem(trainer)
        if problem is not None and self._ranks.is_first and not self._has_said:
            self._has_said = True
            print(f"iteration {trainer.updater.iteration}: no snapshot is written while {problem}", flush=True)
        return problem is None

    def check_end(self, trainer):
        """To be called at the end of training, with the weights that are to be saved in their place.

        Raises:
            Diverged: they are worth nothing; on all ranks.
        """
        steps, problem = trainer.updater.iteration, self._problem(trainer)
        if problem is None and steps and not trainer.updater.get_optimizer("main").t:
            problem = "all steps were skipped, as gradients were not finite"
        if problem is not None:
            raise Diverged(
                f"training has diverged: at its end, in iteration {steps}, {problem}; no model.npz is written; try a "
                "smaller optimizer.lr"
            )

    def _problem(self, trainer):
        """Returns what is wrong, in words, the same on all ranks, or ``None``."""
        found = self._of_losses() or _of_weights(trainer.updater.get_optimizer("main").target)
        return next(filter(None, self._ranks.gather(found)), None)

    def _of_losses(self):
        for name, value in self._losses().items():
            if not math.isfinite(value):
                return f"{_LOSSES[name]} is {value}"
            if value > LARGEST_LOSS:
                return f"{_LOSSES[name]} is {value:.3g}, which is more than {LARGEST_LOSS:.0f}"
        return None

    def _losses(self):
        return {name: float(to_host(value)) for name, value in self._values.items()}

    def serialize(self, serializer):
        """Saves or loads the losses: a run that has come to its end has no further step to know them from."""
        if not isinstance(serializer, Deserializer):
            serializer("last", json.dumps(self._losses()))
            return
        try:
            self._values = json.loads(str(serializer("last", None)))
        except KeyError:  # of a version that kept none
            self._values = {}


def _value(observed):
    """Returns the number, or the array of shape (), of a value that may be a variable, or come with a weight."""
    value = observed[0] if isinstance(observed, tuple) else observed
    return value.array if isinstance(value, chainer.Variable) else value


def _of_weights(model):
    """Returns which weights, or running statistics, of a model are not finite, in words, or ``None``."""
    params = {name.lstrip("/") for name, _ in model.namedparams()}
    finite = {}
    for name, value in sorted(contents(model).items()):
        is_checked = name in params or name.rpartition("/")[2] in _STATISTICS
        if is_checked and isinstance(value, chainer.get_array_types()):
            finite[name] = chainer.backend.get_array_module(value).isfinite(value).all()
    device = chainer.backend.get_device_from_array(*finite.values())
    if not finite or to_host(device.xp.stack(list(map(device.send, finite.values()))).all()):  # one read
        return None
    return f"{next(name for name in finite if not to_host(finite[name])).removeprefix('predictor/')} is not finite"

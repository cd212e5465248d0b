"""An exponential moving average of the weights, for evaluation and for ``model.npz``.

The command uses it if a config has ``training.ema_decay``; the trainer calls it after each step.
"""

import contextlib

import chainer
import numpy as np
from chainer.training import extension

from mixprec.optimizer.batch.saved_arrays import overwritten
from mixprec.optimizer.model_index import ModelIndex
from mixprec.optimizer.moving_average import MovingAverage
from mixprec.precision.master_arrays import master_of
from mixprec.precision.step_counter import skip_flag


class WeightAverage(extension.Extension):
    """Averages the weights of a model over the steps (Polyak & Juditsky 1992, with exponential weights).

    After each step that was not skipped, the averages of all FP32 masters, and of all running statistics in float32,
    are updated by :class:`~mixprec.optimizer.moving_average.MovingAverage`; on a GPU by two launches, and nothing is
    read. Statistics are averaged like weights, as in timm's ``ModelEmaV2`` and, with ``use_buffers``, in
    ``torch.optim.swa_utils.AveragedModel``; other persistent values of a link, such as the counter of batch
    normalization, are not averaged. Snapshots hold the averages in FP32, under the model's own names.

    Args:
        optimizer: :class:`~mixprec.MixedPrecisionOptimizer`, set up.
        decay: above 0 and below 1; it is smaller in the first steps.
    """

    default_name = "average"
    trigger = 1, "iteration"
    priority = extension.PRIORITY_WRITER + 1  # before the evaluation

    def __init__(self, optimizer, decay):
        self._optimizer = optimizer
        self._index = ModelIndex(optimizer.target)
        self._links = self._named_links = ()
        self._average = MovingAverage(decay)

    def initialize(self, trainer):
        """Starts from the current weights of the model, unless averages were loaded from a snapshot."""
        self._follow()
        if self._average.steps == 0:
            for param in self._index.params:
                self._optimizer.master(param)  # updates the master with values written into the parameter
            self._average.restart()

    def __call__(self, trainer):
        self._follow()
        self._average.update(skip_flag(self._optimizer))

    @contextlib.contextmanager
    def applied(self):
        """A context in which the model has the averages in its masters, parameters and statistics.

        Afterwards everything is restored bit for bit. The optimizer must not step inside.
        """
        arrays = self._follow()
        averages = [(array, self._average.averages[name]) for name, array in arrays.items()]
        with overwritten([*averages, *self._copies()]):
            yield

    def serialize(self, serializer):
        """Saves or loads the averages."""
        self._follow()
        averages = self._average.averages
        if isinstance(serializer, chainer.Deserializer):
            loaded = {name: serializer["average"](name, None) for name in averages}
            self._average.load(loaded, int(serializer("steps", 0)))
        else:
            for name, average in averages.items():
                serializer["average"](name, average)
            serializer("steps", self._average.steps)

    def averages_of(self, names):
        """Returns a dict of the averages for the given names, without names that are not averaged; no leading slash."""
        self._follow()
        averages = self._average.averages
        return {name: averages[f"/{name}"] for name in names if f"/{name}" in averages}

    def _follow(self):
        """Returns a dict of the averaged arrays by name: masters, and statistics."""
        index = self._index
        index.refresh()
        if index.links is not self._links:
            self._links, self._named_links = index.links, list(self._optimizer.target.namedlinks())
        arrays = {}
        for name, param in index.namedparams:
            master = master_of(param)
            arrays[name] = param.array if master is None else master
        for path, link in self._named_links:
            arrays |= {f"{path.rstrip('/')}/{name}": link.__dict__.get(name) for name in sorted(link._persistent)}
        once = {id(array): (name, array) for name, array in reversed(arrays.items()) if _is_averaged(array)}
        arrays = dict(reversed(once.values()))
        self._average.follow(arrays)
        return arrays

    def _copies(self):
        """Returns ``[(array, array of its master)]`` of the 16-bit parameters, each once."""
        found = {id(param): (param.array, master_of(param)) for param in self._index.params}
        return [(array, master) for array, master in found.values() if master is not None]


def averaged_weights(trainer):
    """Returns a context manager in which the model has the weights for evaluation.

    These are averages if the trainer has a :class:`WeightAverage`, or else the weights of
    :meth:`mixprec.MixedPrecisionOptimizer.evaluated`.

    Args:
        trainer: :class:`chainer.training.Trainer`.
    """
    average = average_of(trainer)
    return trainer.updater.get_optimizer("main").evaluated() if average is None else average.applied()


def average_of(trainer):
    """Returns the :class:`WeightAverage` of a trainer, or ``None``."""
    try:
        return trainer.get_extension(WeightAverage.default_name)
    except ValueError:  # there is none
        return None


def _is_averaged(array):
    return isinstance(array, chainer.get_array_types()) and array.dtype == np.float32

"""Chainer's log, as JSON lines, without waiting for a GPU in every step."""

import collections
import copy
import json
import math
import os

import numpy as np
from chainer import reporter
from chainer.training import extensions

from mixprec.backends.transfers import HostCopy, on_host, to_host_async
from mixprec.base import arguments, files

LOG = "log.jsonl"


class LogReport(extensions.LogReport):
    """Chainer's extension of this name. Values of a GPU are copied to the host in passing, and summed there.

    Chainer adds observed values up on their device, which is about ten small launches a step and value, and waits for
    the device with each mean. Here each value costs a small copy. The host waits for it only when it needs the sum: for
    an entry of the log, or in a snapshot. Order and dtype of the sums are Chainer's, so that the entries are the same,
    and each can read the other's snapshots.

    The file has one entry a line, a JSON object (https://jsonlines.org); a value that is inf or NaN is ``null`` there.
    It is replaced as a whole, so that it is never half written. When a run is resumed it becomes that of the snapshot.

    Args:
        keys, trigger, postprocess: as for Chainer's extension.
        filename: name of the file in the results folder, formatted with the entry; ``None`` writes none.
        gather: function from a value to the list of the values of all ranks, which have this extension with the same
            trigger: an entry has the mean over ranks of what several of them observe.

    Raises:
        TypeError: an argument is none of those.

    Example:
        >>> import json, pathlib, tempfile
        >>> import chainer, chainer.links as L, numpy as np
        >>> import mixprec
        >>> from mixprec import training
        >>> model = L.Classifier(L.Linear(4, 3))
        >>> report = mixprec.convert(model)
        >>> optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.MomentumSGD()).setup(model)
        >>> data = chainer.datasets.TupleDataset(np.ones((16, 4), np.float32), np.zeros(16, np.int32))
        >>> updater = training.CapturedUpdater(chainer.iterators.SerialIterator(data, 8), optimizer, device=-1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     trainer = chainer.training.Trainer(updater, (2, "epoch"), out=folder)
        ...     trainer.extend(training.LogReport(trigger=(1, "epoch")))
        ...     trainer.run()
        ...     lines = [json.loads(line) for line in pathlib.Path(folder, "log.jsonl").read_text().splitlines()]
        >>> [line["iteration"] for line in lines], "main/loss" in lines[0]
        ([2, 4], True)
    """

    def __init__(self, keys=None, trigger=(1, "epoch"), postprocess=None, filename=LOG, gather=lambda value: [value]):
        if keys is not None:
            arguments.instance("keys", keys, (list, tuple, set, frozenset), "a list of texts or None")
        arguments.trigger("trigger", trigger)
        arguments.function("postprocess", postprocess)
        if filename is not None:
            arguments.instance("filename", filename, str, "a text or None")
        self._gather = gather
        super().__init__(keys, trigger, postprocess, log_name=None)  # the file is not Chainer's business
        self._filename = filename

    def initialize(self, trainer):
        """Writes the file of a run that is resumed: it may have entries that the snapshot does not know."""
        self._write(trainer)

    def __call__(self, trainer):
        entries = len(self.log)
        super().__call__(trainer)
        if len(self.log) > entries:
            self._write(trainer)

    def _write(self, trainer):
        if self._filename is None or not self.log:
            return
        path = os.path.join(trainer.out, self._filename.format(**self.log[-1]))
        files.write_text(path, "".join(map(_line, self.log)))

    def _init_summary(self):
        self._summary = DictSummary(self._gather)


class Summary(reporter.Summary):
    """Chainer's, summing on the host what may still be on its way there."""

    def __init__(self):
        super().__init__()
        self._coming = collections.deque()

    def add(self, value, weight=1):
        """Adds a number or an array of shape (); returns at once.

        Args:
            value: a number, or an array on any device; it may be overwritten afterwards.
            weight: likewise.
        """
        self._coming.append((_on_its_way(value), _on_its_way(weight)))
        while self._coming and all(_is_there(part) for part in self._coming[0]):
            self._add_first()

    def compute_mean(self):
        """Returns the mean, as a number that the host knows; waits for what was added."""
        return _mean([self.sums()])

    def sums(self):
        """Returns the sum of the values times their weights, and that of the weights; waits likewise."""
        self._wait()
        return self._x, self._n

    def make_statistics(self):
        """Returns mean and standard deviation likewise."""
        self._wait()
        return super().make_statistics()

    def serialize(self, serializer):
        """Saves or loads the sums; what was added before is waited for."""
        self._wait()
        super().serialize(serializer)

    def _wait(self):
        while self._coming:
            self._add_first()

    def _add_first(self):
        value, weight = (part.value if isinstance(part, HostCopy) else part for part in self._coming.popleft())
        with np.errstate(over="ignore", invalid="ignore"):  # of losses that diverge; their squares are not logged
            super().add(value, weight)


class DictSummary(reporter.DictSummary):
    """Chainer's, with the :class:`Summary` of this module for each name.

    Args:
        gather: as for :class:`LogReport`.
        summary: class of the sums under a name.
    """

    def __init__(self, gather, summary=Summary):
        self._gather = gather
        self._summaries = collections.defaultdict(summary)

    def compute_mean(self):
        """Returns the means by name, over all ranks that have added something under a name."""
        of_ranks = self._gather({name: summary.sums() for name, summary in self._summaries.items()})
        return {name: _mean([sums[name] for sums in of_ranks if name in sums]) for name in self._summaries}


def value_of(observed):
    """Returns the number, or the array of shape (), of a value that may be a variable, or come with a weight."""
    value = observed[0] if isinstance(observed, tuple) else observed
    return getattr(value, "array", value)


def _mean(sums):
    values, weights = zip(*sums, strict=True)
    with np.errstate(over="ignore", invalid="ignore"):
        return sum(values[1:], values[0]) / sum(weights[1:], weights[0])


def _line(entry):
    return json.dumps({key: value if math.isfinite(value) else None for key, value in entry.items()}) + "\n"


def _on_its_way(value):
    # What the host knows stays a Python number if it is one: it has a say in the dtype of the sum.
    return copy.copy(value) if on_host(value) else to_host_async(value)


def _is_there(part):
    return not isinstance(part, HostCopy) or part.done

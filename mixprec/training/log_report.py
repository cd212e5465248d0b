"""Chainer's log as JSON lines, without waiting for a GPU in every step."""

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
    """Chainer's ``LogReport``, which copies values from a GPU asynchronously and sums them on the host.

    Chainer sums observed values on their device, which takes about ten small launches per step and value, and waits for
    the device for each mean. Here each value costs a small copy. The host waits only when it needs the sum: for an
    entry of the log, or in a snapshot. Order and dtype of the sums are as in Chainer, so that the entries are the same,
    and each can read the other's snapshots.

    The file has one entry a line, a JSON object (https://jsonlines.org); a value that is inf or NaN is ``null`` there.
    It is replaced as a whole, so that it is never incomplete. When a run is resumed, the file is restored from the
    snapshot.

    Args:
        keys, trigger, postprocess: as for Chainer's extension.
        filename: name of the file in the results folder, formatted with the entry; ``None`` for no file.
        gather: function from a value to the list of the values of all ranks, which must have this extension with the
            same trigger: an entry has means over the ranks that observe a value.

    Raises:
        TypeError: an argument has a wrong type.

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
            arguments.instance("keys", keys, (list, tuple, set, frozenset), "a list of strings or None")
        arguments.trigger("trigger", trigger)
        arguments.function("postprocess", postprocess)
        if filename is not None:
            arguments.instance("filename", filename, str, "a string or None")
        self._gather = gather
        super().__init__(keys, trigger, postprocess, log_name=None)  # Chainer must not write the file
        self._filename = filename

    def initialize(self, trainer):
        """Rewrites the file in a resumed run: it may have entries that are not in the snapshot."""
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
    """Chainer's ``Summary``, which sums on the host values that may still be in transfer."""

    def __init__(self):
        super().__init__()
        self._coming = collections.deque()

    def add(self, value, weight=1):
        """Adds a number or an array of shape (); returns at once.

        Args:
            value: a number, or an array on any device; it may be overwritten afterwards.
            weight: a number, or an array on any device; it may be overwritten afterwards.
        """
        self._coming.append((_on_its_way(value), _on_its_way(weight)))
        while self._coming and all(_is_there(part) for part in self._coming[0]):
            self._add_first()

    def compute_mean(self):
        """Returns the mean as a host number; waits for the added values."""
        return _mean([self.sums()])

    def sums(self):
        """Returns the weighted sum of the values, and the sum of the weights; waits for the added values."""
        self._wait()
        return self._x, self._n

    def make_statistics(self):
        """Returns mean and standard deviation as host numbers; waits for the added values."""
        self._wait()
        return super().make_statistics()

    def serialize(self, serializer):
        """Saves or loads the sums; waits for the added values."""
        self._wait()
        super().serialize(serializer)

    def _wait(self):
        while self._coming:
            self._add_first()

    def _add_first(self):
        value, weight = (part.value if isinstance(part, HostCopy) else part for part in self._coming.popleft())
        with np.errstate(over="ignore", invalid="ignore"):  # diverging losses; their squares are not logged
            super().add(value, weight)


class DictSummary(reporter.DictSummary):
    """Chainer's ``DictSummary``, with the :class:`Summary` of this module for each name.

    Args:
        gather: as for :class:`LogReport`.
        summary: class of the sums for a name.
    """

    def __init__(self, gather, summary=Summary):
        self._gather = gather
        self._summaries = collections.defaultdict(summary)

    def compute_mean(self):
        """Returns the means by name, over all ranks that have added values under the name."""
        of_ranks = self._gather({name: summary.sums() for name, summary in self._summaries.items()})
        return {name: _mean([sums[name] for sums in of_ranks if name in sums]) for name in self._summaries}


def value_of(observed):
    """Returns the number, or the array of shape (), of an observed value, which may be a variable or have a weight."""
    value = observed[0] if isinstance(observed, tuple) else observed
    return getattr(value, "array", value)


def _mean(sums):
    values, weights = zip(*sums, strict=True)
    with np.errstate(over="ignore", invalid="ignore"):
        return sum(values[1:], values[0]) / sum(weights[1:], weights[0])


def _line(entry):
    return json.dumps({key: value if math.isfinite(value) else None for key, value in entry.items()}) + "\n"


def _on_its_way(value):
    # A Python number stays one, as its type affects the dtype of the sum.
    return copy.copy(value) if on_host(value) else to_host_async(value)


def _is_there(part):
    return not isinstance(part, HostCopy) or part.done

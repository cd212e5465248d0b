"""The log as TensorBoard events.

With ``log.tensorboard`` the trainer calls :class:`TensorBoard` after each entry of the log. The training command calls
:func:`missing` first.
"""

import importlib.util
import os

from chainer.training import extension

from mixprec.base.installation import install_hint

FOLDER = "tensorboard"  # in the results folder
_NOT_VALUES = ("epoch", "iteration", "elapsed_time")


def missing():
    """Returns why events cannot be written, in one line, or ``None``."""
    if importlib.util.find_spec("tensorboardX") is None:
        return f"needs the package tensorboardX: {install_hint('tensorboard')}"
    return None


class TensorBoard(extension.Extension):
    """Writes each entry of the log as scalar events, in the folder ``tensorboard`` of the results.

    The step is the iteration. A resumed run adds a file, which makes TensorBoard drop older events beyond the snapshot.

    Args:
        log_report: Chainer's :class:`~chainer.training.extensions.LogReport`; give this extension the same trigger.
    """

    priority = extension.PRIORITY_READER - 1

    def __init__(self, log_report):
        self._log_report = log_report
        self._written = 0
        self._writer = None

    def initialize(self, trainer):
        """Opens a file of events."""
        from tensorboardX import SummaryWriter

        self._written = len(self._log_report.log)
        iteration = trainer.updater.iteration
        self._writer = SummaryWriter(
            os.path.join(trainer.out, FOLDER),
            purge_step=iteration + 1 if iteration else None,
            filename_suffix=f".{iteration}",  # the rest of the name is host and second
        )

    def __call__(self, trainer):
        for entry in self._log_report.log[self._written :]:
            for key, value in entry.items():
                if key not in _NOT_VALUES:
                    self._writer.add_scalar(key, value, entry["iteration"])
        self._written = len(self._log_report.log)
        self._writer.flush()

    def finalize(self):
        """Closes the file."""
        if self._writer is not None:
            self._writer.close()

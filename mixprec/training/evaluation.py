"""Evaluation in which every image counts the same."""

from chainer import no_backprop_mode, reporter
from chainer.dataset import concat_examples
from chainer.training import extensions

from mixprec.training.log_report import DictSummary


class Evaluator(extensions.Evaluator):
    """Chainer's evaluator, with the mean taken over images instead of batches.

    Chainer's own gives the last, smaller batch the weight of a full one. What a GPU has computed is summed on the host,
    which waits for it once, at the end.

    Args:
        iterator: iterator over the images, with ``reset``.
        target: the model.
        converter: callable from a batch and a device to the model's positional arguments.
        device: Chainer's device.
        eval_func: what is called in place of the model and reports for it, such as
            :func:`mixprec.graph_capture.capture_evaluation`; ``None`` calls the model.
    """

    default_name = "validation"

    def __init__(self, iterator, target, converter=concat_examples, device=None, eval_func=None):
        super().__init__(iterator, target, converter=converter, device=device, eval_func=eval_func)

    def evaluate(self):
        """Runs over the iterator once and returns the means of what the model reports."""
        iterator = self.get_iterator("main")
        evaluate = self.eval_func or self.get_target("main")
        iterator.reset()
        summary = DictSummary()
        for batch in iterator:
            arrays = self.converter(batch, self.device)
            observation = {}
            with reporter.report_scope(observation), no_backprop_mode():
                evaluate(*arrays)
            images = len(arrays[0])
            summary.add({key: (value, images) for key, value in observation.items()})
        return summary.compute_mean()

"""Evaluation in which every image counts the same."""

from chainer import no_backprop_mode, reporter
from chainer.training import extensions


class Evaluator(extensions.Evaluator):
    """Chainer's evaluator, with the mean taken over images instead of batches.

    Chainer's own gives the last, smaller batch the weight of a full one.
    """

    default_name = "validation"

    def evaluate(self):
        """Runs over the iterator once and returns the means of what the model reports."""
        iterator = self.get_iterator("main")
        model = self.get_target("main")
        iterator.reset()
        summary = reporter.DictSummary()
        for batch in iterator:
            arrays = self.converter(batch, self.device)
            observation = {}
            with reporter.report_scope(observation), no_backprop_mode():
                model(*arrays)
            images = len(arrays[0])
            summary.add({key: (value, images) for key, value in observation.items()})
        return summary.compute_mean()

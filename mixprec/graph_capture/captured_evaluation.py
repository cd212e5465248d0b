"""The evaluation of a model as work that can be captured, for :func:`mixprec.graph_capture.capture_evaluation`."""

import chainer

from mixprec.graph_capture.called_links import are_same, local_hooks
from mixprec.graph_capture.capturable import Capturable, GraphSession
from mixprec.optimizer.model_index import ModelIndex


class Evaluation(Capturable):
    """A call of a model with ``chainer.config.train`` off and without backprop; it changes at most states of links.

    Args:
        model: the link.
    """

    name = "the evaluation"

    def __init__(self, model):
        self.model = model

    def run(self, args, kwargs, *, unchains=False):
        """Calls the model; there is no computational graph to cut."""
        with chainer.using_config("train", False), chainer.no_backprop_mode():
            return self.model(*args, **kwargs)

    def session(self):
        """See :meth:`Capturable.session`."""
        return EvaluationSession(self.model)


class EvaluationSession(GraphSession):
    """Compares the arrays of a model with the arrays that its graph reads.

    Args:
        model: the link.
    """

    def __init__(self, model):
        self._index = ModelIndex(model)
        self._held = self._objects()

    def holds(self):
        """See :meth:`GraphSession.holds`."""
        self._index.refresh()
        return are_same(self._objects(), self._held)

    def _objects(self):
        links, params = self._index.links, self._index.params
        values = [link.__dict__.get(name) for link in links for name in link._persistent]
        return [*links, *(param.array for param in params), *values, *local_hooks(links)]

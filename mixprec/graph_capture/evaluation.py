"""An evaluation of a model as work that can be captured."""

import contextlib
import operator

import chainer

from mixprec import arguments
from mixprec.graph_capture.captured import Captured
from mixprec.graph_capture.graph_step import local_hooks
from mixprec.graph_capture.links import left_out
from mixprec.optimizer.model_index import ModelIndex


def capture_evaluation(model, *, warmup=3, graphs=4, other_shapes="capture", required=False):
    """Returns a function that calls a model to evaluate it, on a CUDA device each time by one launch of a CUDA graph.

    ``evaluate(x, t)`` does what ``model(x, t)`` does with ``chainer.config.train`` off and without backprop, and
    reports what the model reports.

    Args:
        model: a link.
        warmup: as for :func:`~mixprec.graph_capture.training_step.capture`, as are all that follow.
        graphs: likewise.
        other_shapes: likewise.
        required: likewise.

    Returns:
        :class:`~mixprec.graph_capture.captured.Captured`. A call returns the model's result in new arrays.

    Raises:
        TypeError: ``model`` is not a link, or ``required`` no bool.
        ValueError: another argument is out of its range.
    """
    arguments.instance("model", model, chainer.Link, "a chainer.Link")
    return Captured(_Evaluation(model), warmup=warmup, graphs=graphs, other_shapes=other_shapes, required=required)


class _Evaluation:
    name = "the evaluation"
    second_stream = False

    def __init__(self, model):
        self.model = model

    def run(self, args, kwargs, *, unchains=False):
        with chainer.using_config("train", False), chainer.no_backprop_mode():
            return self.model(*args, **kwargs)

    def is_under_way(self):
        return False

    def plan(self):
        return None

    def why_not(self):
        return left_out(self.model)

    def session(self):
        return _Unchanged(self.model)

    def state(self):
        return {}

    def left(self):
        return None

    def leave(self, left):
        pass

    def counts(self):
        return True

    def finish(self, arguments, *, wait):
        pass


class _Unchanged:
    """Looks whether a model still has the arrays that a graph reads."""

    def __init__(self, model):
        self._structure = ModelIndex(model)
        self._held = self._now()

    @contextlib.contextmanager
    def capturing(self):
        yield

    def holds(self):
        self._structure.refresh()
        now = self._now()
        return len(now) == len(self._held) and all(map(operator.is_, now, self._held))

    def before_launch(self):
        pass

    def after_launch(self):
        pass

    def release(self):
        pass

    def _now(self):
        links, params = self._structure.links, self._structure.params
        values = [link.__dict__.get(name) for link in links for name in link._persistent]
        return [*links, *(param.array for param in params), *values, *local_hooks(links)]

"""A training step as work that can be captured."""

from collections.abc import Callable, Iterator
from typing import Any, Literal

import chainer
import numpy as np

from mixprec import arguments
from mixprec.graph_capture import graph_step
from mixprec.graph_capture.captured import Captured
from mixprec.graph_capture.links import left_out
from mixprec.optimizer import MixedPrecisionOptimizer


def capture(
    optimizer: MixedPrecisionOptimizer,
    lossfun: Callable[..., Any] | None = None,
    *,
    warmup: int = 3,
    graphs: int = 4,
    other_shapes: Literal["capture", "eager"] = "capture",
    required: bool = False,
    second_stream: bool = False,
) -> Captured:
    """Returns a function that runs training steps, on a CUDA device each by one launch of a CUDA graph.

    ``loss = step(x, t)`` does what ``optimizer.update(lossfun, x, t)`` does. On NumPy it is that. On a device the first
    ``warmup`` calls for arguments of each kind (shapes, dtypes) are eager steps; if the last two of them asked the
    device for the same, the next one is captured, compared with an eager step, and launched from then on. The graph
    holds forward pass, loss, backward pass, the check for overflows, the update, the loss scale and the running
    statistics. ``docs/capture.md`` says what it cannot hold.

    Args:
        optimizer: :class:`~mixprec.MixedPrecisionOptimizer`, set up.
        lossfun: as for :meth:`~mixprec.MixedPrecisionOptimizer.update`; ``None`` for the model.
        warmup: number of eager steps for each kind of arguments, at least 2.
        graphs: number of graphs that are kept, at least 1; the one that was used least recently makes room.
        other_shapes: ``"capture"``, or ``"eager"`` for one graph only, that of the first kind of arguments.
        required: whether what cannot be captured is a ``CaptureError``. Otherwise it is announced once, by a warning of
            the logger ``"mixprec"``, and steps are eager from then on.
        second_stream: whether gradients of convolution filters are computed on a second stream, beside the rest of the
            backward pass. Results are the same bit for bit.

    Returns:
        :class:`~mixprec.graph_capture.captured.Captured`. A call takes the arguments of ``lossfun``, arrays on the host
        or the device, and returns the loss, or the sum of the losses, a :class:`chainer.Variable` without a graph.

    Raises:
        TypeError: ``optimizer`` is not a :class:`~mixprec.MixedPrecisionOptimizer`, ``lossfun`` no function, or
            ``required`` or ``second_stream`` no bool.
        ValueError: another argument is out of its range.
    """
    if not isinstance(optimizer, MixedPrecisionOptimizer):
        hint = "; steps with ChainerMN cannot be captured" if hasattr(optimizer, "actual_optimizer") else ""
        raise TypeError(f"optimizer must be a MixedPrecisionOptimizer; found {type(optimizer).__name__}{hint}")
    arguments.function("lossfun", lossfun)
    work = _TrainingStep(optimizer, lossfun, arguments.flag("second_stream", second_stream))
    return Captured(work, warmup=warmup, graphs=graphs, other_shapes=other_shapes, required=required)


class _TrainingStep:
    name = "the training step"

    def __init__(self, optimizer, lossfun, second_stream):
        self._optimizer, self._given_lossfun = optimizer, lossfun
        self.second_stream = second_stream

    @property
    def model(self):
        if self._optimizer.target is None:
            raise RuntimeError("the optimizer is not set up: call setup(model)")
        return self._optimizer.target

    def run(self, args, kwargs, *, unchains=False):
        arrays, lasting = [], []

        def noted(loss):
            arrays.append(loss.array)
            return loss

        def noted_each(losses):
            for loss in losses:
                yield noted(loss)
                if unchains:
                    loss.unchain_backward()
                del loss  # before the next one, for which there is to be memory

        def lossfun(*args, **kwargs):
            losses = self._lossfun(*args, **kwargs)
            if isinstance(losses, Iterator):
                return noted_each(losses)
            lasting.append(losses)
            return noted(losses)

        graph_step.run(self._optimizer, lossfun, args, kwargs)
        if unchains:
            for loss in lasting:
                loss.unchain_backward()
        total = sum(arrays[1:], start=arrays[0])
        if isinstance(total, np.generic):  # a sum of arrays of shape () on NumPy
            total = np.asarray(total)
        return chainer.Variable(total, requires_grad=False)

    def is_under_way(self):
        return graph_step.is_under_way(self._optimizer)

    def plan(self):
        return graph_step.plan(self._optimizer)

    def why_not(self):
        return left_out(self.model) or graph_step.why_not(self._optimizer)

    def session(self):
        return graph_step.GraphStep(self._optimizer)

    def state(self):
        return graph_step.state(self._optimizer)

    def left(self):
        return graph_step.left(self._optimizer)

    def leave(self, left):
        graph_step.leave(left)

    def counts(self):
        return not self._optimizer.last_step_skipped

    def finish(self, arguments, *, wait):
        graph_step.finish(self._optimizer, self._lossfun, arguments, wait=wait)

    @property
    def _lossfun(self):
        return self.model if self._given_lossfun is None else self._given_lossfun

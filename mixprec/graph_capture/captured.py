"""``mixprec.capture``: a training step that runs eagerly at first, then as CUDA graphs.

The user calls :func:`capture` or :func:`capture_evaluation` once, and the returned :class:`Captured` in each step.
"""

import collections
from collections.abc import Callable
from typing import Any, Literal

import chainer

from mixprec.activation_memory import offloading
from mixprec.backends.capture_error import CaptureError
from mixprec.backends.cudnn import settings
from mixprec.backends.cudnn.errors import lacks_memory
from mixprec.base import arguments
from mixprec.base.announcements import announce
from mixprec.graph_capture.called_links import array_of
from mixprec.graph_capture.capturable import Capturable
from mixprec.graph_capture.captured_evaluation import Evaluation
from mixprec.graph_capture.cuda_graphs import graphs_of
from mixprec.graph_capture.graph_step import TrainingStep
from mixprec.graph_capture.link_states import LinkStates
from mixprec.graph_capture.rank_agreement import EAGER, REFUSED, RankVote
from mixprec.graph_capture.specialization import UNDER_WAY, Specialization
from mixprec.graph_capture.step_arguments import Arguments
from mixprec.optimizer import MixedPrecisionOptimizer

_OTHER_SHAPES = ("capture", "eager")
_WAITING = 16  # specializations without a graph that are remembered
_CONFIG = ("train", "enable_backprop", "dtype", "use_cudnn", "cudnn_deterministic")


def capture(
    optimizer: MixedPrecisionOptimizer,
    lossfun: Callable[..., Any] | None = None,
    *,
    warmup: int = 3,
    graphs: int = 4,
    other_shapes: Literal["capture", "eager"] = "capture",
    required: bool = False,
    second_stream: bool = False,
) -> "Captured":
    """Returns a function that runs training steps; on a CUDA device each is one launch of a CUDA graph.

    ``loss = step(x, t)`` does what ``optimizer.update(lossfun, x, t)`` does; on NumPy it calls that. On a device the
    first ``warmup`` calls are eager steps. If the last two of them made the same requests to the device, the next step
    is captured, compared with an eager step, and launched from then on. Arguments of other shapes or dtypes get a graph
    of their own. The graph contains forward pass, loss, backward pass, the check for overflows, the update, the loss
    scale and the running statistics, and with a communicator the sums over processes by NCCL: then either all processes
    launch, or none. ``docs/capture.md`` says what a graph cannot contain.

    States that links of the model keep from step to step, such as ``c`` and ``h`` of ``L.LSTM``, belong to the graph:
    the next call writes into their arrays. The backward pass of a step ends at them: each call first cuts the
    computational graphs behind the variables that the last call has left in attributes of the model's links.

    Args:
        optimizer: :class:`~mixprec.MixedPrecisionOptimizer`, set up.
        lossfun: as for :meth:`~mixprec.MixedPrecisionOptimizer.update`; ``None`` for the model.
        warmup: number of eager steps before a graph, at least 2.
        graphs: number of graphs that are kept, at least 1. A new graph replaces the least recently launched one.
        other_shapes: ``"capture"`` for a graph for each combination of shapes, ``"eager"`` for a single graph, for the
            shapes of the first call.
        required: whether a step that cannot be captured is an error. Otherwise mixprec logs one warning with the reason
            to the logger ``"mixprec"``, and steps with such arguments stay eager.
        second_stream: whether gradients of convolution filters are computed on a second stream, in parallel with the
            rest of the backward pass. Results are the same bit for bit.

    Returns:
        :class:`Captured`. A call takes the arguments of ``lossfun``, arrays on the host or the device, and returns the
        loss, or the sum of the losses, a :class:`chainer.Variable` without a graph.

    Raises:
        TypeError: ``optimizer`` is not a :class:`~mixprec.MixedPrecisionOptimizer`, ``lossfun`` is not a function, or
            ``required`` or ``second_stream`` is not a bool.
        ValueError: another argument is out of its range.

    Example:
        >>> import chainer, chainer.links as L, numpy as np
        >>> import mixprec
        >>> model = L.Classifier(L.Linear(4, 3))
        >>> report = mixprec.convert(model)
        >>> sgd = chainer.optimizers.MomentumSGD(lr=0.1)
        >>> optimizer = mixprec.MixedPrecisionOptimizer(sgd).setup(model)
        >>> step = mixprec.capture(optimizer)
        >>> x, t = np.ones((8, 4), np.float32), np.zeros(8, np.int32)
        >>> for _ in range(10):
        ...     loss = step(x, t)  # in place of optimizer.update(model, x, t)
        >>> optimizer.t
        10
        >>> step.replays  # launches of a graph: 0 on a CPU, 5 on a GPU
        0
    """
    if not isinstance(optimizer, MixedPrecisionOptimizer):
        hint = (
            ": give the communicator to MixedPrecisionOptimizer, in place of create_multi_node_optimizer"
            if hasattr(optimizer, "actual_optimizer")
            else ""
        )
        raise TypeError(f"optimizer must be a MixedPrecisionOptimizer; found {type(optimizer).__name__}{hint}")
    arguments.function("lossfun", lossfun)
    step = TrainingStep(optimizer, lossfun, arguments.flag("second_stream", second_stream))
    return Captured(step, warmup=warmup, graphs=graphs, other_shapes=other_shapes, required=required)


def capture_evaluation(
    model: chainer.Link,
    *,
    warmup: int = 3,
    graphs: int = 4,
    other_shapes: Literal["capture", "eager"] = "capture",
    required: bool = False,
) -> "Captured":
    """Returns a function that evaluates a model; on a CUDA device each call is one launch of a CUDA graph.

    ``evaluate(x, t)`` does what ``model(x, t)`` does with ``chainer.config.train`` off and without backprop, and
    reports the same values.

    Args:
        model: a link.
        warmup: as for :func:`capture`.
        graphs: as for :func:`capture`.
        other_shapes: as for :func:`capture`.
        required: as for :func:`capture`.

    Returns:
        :class:`Captured`. A call returns the model's result in new arrays.

    Raises:
        TypeError: ``model`` is not a link, or ``required`` is not a bool.
        ValueError: another argument is out of its range.

    Example:
        >>> import chainer, chainer.links as L, numpy as np
        >>> import mixprec
        >>> from mixprec.graph_capture import capture_evaluation
        >>> model = L.Linear(4, 3)
        >>> report = mixprec.convert(model)
        >>> evaluate = capture_evaluation(model)
        >>> with chainer.using_config("train", False), chainer.no_backprop_mode():
        ...     y = evaluate(np.ones((8, 4), np.float32))
        >>> y.shape, evaluate.replays  # launches of a graph: none on a CPU
        ((8, 3), 0)
    """
    arguments.instance("model", model, chainer.Link, "a chainer.Link")
    return Captured(Evaluation(model), warmup=warmup, graphs=graphs, other_shapes=other_shapes, required=required)


class Captured:
    """Runs work eagerly at first, then launches CUDA graphs of it.

    Each combination of shapes, dtypes and settings has a graph of its own, and a
    :class:`~mixprec.graph_capture.specialization.Specialization` that captures it.

    Args:
        capturable: :class:`~mixprec.graph_capture.capturable.Capturable`.
        warmup: as for :func:`capture`.
        graphs: as for :func:`capture`.
        other_shapes: as for :func:`capture`.
        required: as for :func:`capture`.

    Attributes:
        why_not: why calls like the last one are not captured, as text; ``None`` if they are, or may still be.
        replays: number of calls that launched a graph.

    Raises:
        TypeError: ``required`` is not a bool.
        ValueError: another argument is out of its range.
    """

    def __init__(self, capturable: Capturable, *, warmup: int, graphs: int, other_shapes: str, required: bool) -> None:
        self._capturable, self._name = capturable, capturable.name
        self._warmup = arguments.whole("warmup", warmup, 2)
        self._graphs = arguments.whole("graphs", graphs, 1)
        self._other_shapes = arguments.choice("other_shapes", other_shapes, _OTHER_SHAPES)
        self._required = arguments.flag("required", required)
        self._specializations = collections.OrderedDict()  # by key, the last called at the end
        self._first_key = None  # with other_shapes="eager": the key of the only specialization
        self._states = LinkStates()
        self._failures = {}  # shapes and reasons, as texts, by key
        self.why_not: str | None = None
        self.replays: int = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Does the work once.

        Args:
            args: arrays or variables on the host or the device, also in tuples, lists and dicts. A graph is for one
                value of everything else.
            kwargs: keyword arguments, as ``args``.

        Returns:
            The result of the work, in new arrays.

        Raises:
            CaptureError: the work cannot be captured, on any rank, and capture is required. The call that detects this
                does the work, once and eagerly; later calls do nothing.
        """
        self._capturable.cut()
        graphs = graphs_of(array_of(self._capturable.model))
        if graphs is None:
            if self._required:
                raise self._error("it needs a CUDA device")
            return self._eager(args, kwargs, wait=True)
        given = Arguments(args, kwargs)
        with graphs.on_stream():
            key, specialization, own = self._look(given, graphs)
            with self._capturable.agreed(own) as vote:
                if vote.kind == EAGER and vote is not own:
                    announce("%s runs eagerly in calls in which ranks differ: %s", self._name, vote.reason)
                if vote.kind == REFUSED:
                    raise self._error(vote.reason)
                states = self._states.kept()
                try:
                    result = self._called(specialization, given, vote, graphs)
                except Exception as error:
                    can_repeat = self._capturable.is_alone and vote.reason is not UNDER_WAY
                    if not (lacks_memory(error) and can_repeat and self._drop_others(key)):
                        raise
                    self._states.restore(states)
                    result = self._called(specialization, given, vote, graphs)
                failure = None if specialization is None else self._failure(key, specialization)
        if failure is not None:
            self.why_not = failure
            if self._required:
                raise self._error(failure)
            announce("%s runs eagerly, it cannot be captured: %s", self._name, failure)
        return result

    def _called(self, specialization, given, vote, graphs):
        """Does the work, eagerly if there is no specialization for the call."""
        if specialization is None:
            return self._eager(*given.on_device(graphs), wait=False)
        launches = specialization.launches
        result = specialization.call(given, vote)
        self.replays += specialization.launches - launches
        specialization.finish()
        return result

    def _failure(self, key, specialization):
        """Returns why calls with this key cannot be captured from now on, as text, or ``None``."""
        failure = specialization.failure
        if failure is None:
            return None
        if specialization.try_again():
            self._drop_others(key)
            return None
        specialization.drop()
        self._failures[key] = specialization.shapes, failure
        del self._specializations[key]
        return failure

    def reset(self) -> None:
        """Drops all graphs; call it when code or numbers that a graph has frozen have changed.

        The next calls are eager, and then capture new graphs, even if nothing could be captured before.
        """
        for specialization in self._specializations.values():
            specialization.drop()
        self._specializations.clear()
        self._failures.clear()
        self._states = LinkStates()
        self.why_not = self._first_key = None

    def report(self) -> str:
        """Returns a text that says what is captured, and why other calls are not."""
        lines = [f"{shapes}: {self._name} is not captured: {reason}" for shapes, reason in self._failures.values()]
        for each in self._specializations.values():
            state = f"{each.calls} eager calls"
            if each.graph is not None:
                state += f", then a graph that was launched {each.launches} times"
            lines.append(f"{each.shapes}: {state}")
        return "\n".join(lines) or f"{self._name} was not called yet, or is not on a CUDA device"

    def _eager(self, args, kwargs, wait):
        result = self._capturable.run(args, kwargs)
        self._capturable.finish(lambda: (args, kwargs), wait=wait)
        return result

    def _look(self, given, graphs):
        """Returns a key, the :class:`Specialization` for it, ``None`` if a call is eager, and a :class:`RankVote`."""
        self.why_not = None
        hook = self._hook()
        if hook is not None:
            return None, None, self._no_graph(f"a graph would leave out {hook}")
        everywhere, here = vars(chainer.global_config), vars(chainer.config._local)
        try:
            config = *[here.get(name, everywhere[name]) for name in _CONFIG], self._states.unusual()
            key = graphs, given.key, config, settings.current(), offloading.active(), self._capturable.variant
        except TypeError as error:
            self.why_not = str(error)
            announce("%s runs eagerly, it cannot be captured: %s", self._name, self.why_not)
            return None, None, self._no_graph(self.why_not)
        if self._failures and key in self._failures:  # a key takes time to hash
            _, self.why_not = self._failures[key]
            return None, None, self._no_graph(self.why_not)
        if self._other_shapes == "eager":
            self._first_key = self._first_key or key[:-1]
            if key[:-1] != self._first_key:
                return None, None, RankVote(EAGER, "other_shapes is eager, and its arguments have other shapes")
        if key not in self._specializations:
            self._specializations[key] = Specialization(self._capturable, given, graphs, self._warmup, self._states)
        self._specializations.move_to_end(key)
        if len(self._specializations) > 1:
            self._make_room()
        specialization = self._specializations[key]
        return key, specialization, specialization.vote()

    def _no_graph(self, reason):
        """The :class:`RankVote` of a call that cannot be captured."""
        return RankVote(REFUSED if self._required else EAGER, reason)

    def _make_room(self):
        """Drops the least recently called specialization, so that the current one may have a graph."""
        *others, (current_key, current) = self._specializations.items()
        others = [(key, each) for key, each in others if key[-1] == current_key[-1]]  # with the same variant
        with_graph = [key for key, each in others if each.graph is not None]
        without = [key for key, each in others if each.graph is None]
        room = self._graphs - current.wants_graph
        if len(with_graph) > room:
            announce("%s: a graph was dropped for a graph of other arguments, graphs=%d", self._name, self._graphs)
        if len(without) > _WAITING:
            announce("%s runs eagerly for many combinations of shapes, none of which is frequent", self._name)
        for key in [*with_graph[: max(0, len(with_graph) - room)], *without[:-_WAITING]]:
            self._specializations.pop(key).drop()

    def _hook(self):
        """Returns the name of an active hook for all functions or links, which a graph would not run, or ``None``."""
        for hook in (*chainer.get_function_hooks().values(), *chainer._get_link_hooks().values()):
            if not self._required:
                announce("%s runs eagerly while the hook %s is active", self._name, type(hook).__name__)
            return type(hook).__name__
        return None

    def _drop_others(self, key):
        """Drops the graphs of all other keys to free memory; returns whether there were any."""
        with_graph = [each for name, each in self._specializations.items() if name != key and each.graph is not None]
        if with_graph:
            announce("%s: graphs of other arguments were dropped, as memory ran out", self._name)
        for each in with_graph:
            each.drop()
        return bool(with_graph)

    def _error(self, reason):
        return CaptureError(f"{self._name} cannot be captured, which is required: {reason}")

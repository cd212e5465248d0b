"""Work that is done again and again: eagerly at first, then as CUDA graphs, one for each kind of arguments."""

import collections
from typing import Any, Literal

import chainer

from mixprec import arguments
from mixprec.announcements import announce
from mixprec.backends import graphs_of
from mixprec.backends.capture_error import CaptureError
from mixprec.backends.cudnn import settings
from mixprec.graph_capture.arguments import Arguments
from mixprec.graph_capture.kind import Kind
from mixprec.graph_capture.links import array_of

OTHER_SHAPES = ("capture", "eager")
_WAITING = 16  # kinds of arguments without a graph that are remembered
_CONFIG = ("train", "enable_backprop", "dtype", "use_cudnn", "cudnn_deterministic")


class Captured:
    """Calls work eagerly, or launches a graph of it if there is one for such arguments.

    Args:
        work: what is done, an object with

            - ``name``: for messages;
            - ``second_stream``: whether it may use a second stream of the device;
            - ``model``: the link with all that it moves;
            - ``run(args, kwargs, unchains)``: does it, also while a graph captures, and perhaps forgets what led to its
              result; returns variables, arrays and numbers;
            - ``is_under_way()``: whether the next time has begun already, by something that a graph would not know;
            - ``plan()``: an object, another one if the next time is not expected to be like the last one;
            - ``why_not()``: why it cannot be captured, as text, or ``None``;
            - ``session()``: what the host does around a graph, with the methods of
              :class:`~mixprec.graph_capture.graph_step.GraphStep`;
            - ``state()``: dict from names to the arrays that it moves;
            - ``left()`` and ``leave(left)``: what else it leaves in the model, and to put that there again;
            - ``counts()``: whether the last time has moved them; the host may wait for that;
            - ``finish(arguments, wait)``: ends each time; a callable that returns ``(args, kwargs)``, and whether the
              host may wait then.

        warmup: number of eager calls for each kind of arguments before a graph is captured, at least 2.
        graphs: number of graphs that are kept, at least 1; the one that was launched least recently makes room.
        other_shapes: ``"capture"``, or ``"eager"`` for one graph only, that of the first kind of arguments.
        required: whether what cannot be captured is an error.

    Attributes:
        why_not: why nothing is captured any more, as text; ``None`` if it is, or may still be.
        replays: number of calls that launched a graph.

    Raises:
        TypeError: ``required`` is no bool.
        ValueError: another argument is out of its range.
    """

    def __init__(
        self,
        work: Any,
        *,
        warmup: int = 3,
        graphs: int = 4,
        other_shapes: Literal["capture", "eager"] = "capture",
        required: bool = False,
    ) -> None:
        self._work = work
        self._warmup = arguments.whole("warmup", warmup, 2)
        self._graphs = arguments.whole("graphs", graphs, 1)
        self._other_shapes = arguments.choice("other_shapes", other_shapes, OTHER_SHAPES)
        self._required = arguments.flag("required", required)
        self._kinds = collections.OrderedDict()  # Kind by its key, the one that was called last at the end
        self._only = None  # the key that has the one graph
        self.why_not: str | None = None
        self.replays: int = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Does the work once.

        Args:
            args: arrays or variables of the host or the device, also in tuples, lists and dicts; everything else
                is a part of what is captured.
            kwargs: likewise.

        Returns:
            What the work returns, in new arrays.

        Raises:
            CaptureError: it cannot be captured, and that is required. The call that finds it out does the work, once
                and eagerly; the next ones do nothing.
        """
        graphs = graphs_of(array_of(self._work.model))
        if graphs is None:
            if self._required:
                raise CaptureError(f"{self._work.name} cannot be captured, which is required: it needs a CUDA device")
            return self._eager(args, kwargs)
        if self.why_not is not None and self._required:
            raise CaptureError(f"{self._work.name} cannot be captured, which is required: {self.why_not}")
        given = Arguments(args, kwargs)
        with graphs.on_stream():
            kind = None if self.why_not is not None or self._is_hooked() else self._kind_of(given, graphs)
            if kind is None:
                return self._eager(*given.on_device(graphs))
            launches = kind.launches
            result = kind.call(given)
            self.replays += kind.launches - launches
            kind.finish()
        if kind.failure is not None:
            self._give_up(kind.failure)
        return result

    def reset(self) -> None:
        """Forgets all graphs, and why there are none; to be called when code or numbers of the work have changed."""
        for kind in self._kinds.values():
            kind.drop()
        self._kinds.clear()
        self.why_not = self._only = None

    def report(self) -> str:
        """Returns what is captured, and why something is not, as text."""
        lines = [] if self.why_not is None else [f"{self._work.name} is not captured: {self.why_not}"]
        for kind in self._kinds.values():
            state = f"{kind.calls} eager calls"
            if kind.graph is not None:
                state += f", then a graph that was launched {kind.launches} times"
            lines.append(f"{kind.shapes}: {state}")
        return "\n".join(lines) or f"{self._work.name} was not called yet, or is not on a CUDA device"

    def _eager(self, args, kwargs):
        result = self._work.run(args, kwargs)
        self._work.finish(lambda: (args, kwargs), wait=True)
        return result

    def _kind_of(self, given, graphs):
        """Returns the :class:`Kind` of a call, or ``None`` if there is to be no graph for it."""
        everywhere, here = vars(chainer.global_config), vars(chainer.config._local)
        config = tuple([here.get(name, everywhere[name]) for name in _CONFIG])
        try:
            key = graphs, given.key, config, settings.current()
        except TypeError as error:
            self._give_up(str(error))
            return None
        if self._other_shapes == "eager":
            self._only = self._only or key
            if key != self._only:
                return None
        if key not in self._kinds:
            self._kinds[key] = Kind(self._work, given, graphs, self._warmup)
        self._kinds.move_to_end(key)
        if len(self._kinds) > 1:
            self._make_room()
        return self._kinds[key]

    def _make_room(self):
        """Forgets what was called least recently, so that the kind that is called now may have a graph."""
        *others, now = self._kinds.items()
        with_graph = [key for key, kind in others if kind.graph is not None]
        without = [key for key, kind in others if kind.graph is None]
        room = self._graphs - 1 if now[1].wants_graph else self._graphs
        if len(with_graph) > room:
            announce("%s: a graph makes room for that of other arguments, graphs=%d", self._work.name, self._graphs)
        if len(without) > _WAITING:
            announce("%s runs eagerly for many kinds of arguments, none of which comes often", self._work.name)
        for key in [*with_graph[: max(0, len(with_graph) - room)], *without[:-_WAITING]]:
            self._kinds.pop(key).drop()

    def _is_hooked(self):
        """Whether hooks want to see every function or link: then a call is eager, as a graph would leave them out."""
        hooks = [*chainer.get_function_hooks().values(), *chainer._get_link_hooks().values()]
        if hooks:
            name = type(hooks[0]).__name__
            if self._required:
                raise CaptureError(f"{self._work.name} is required to be captured, and a graph would leave out {name}")
            announce("%s runs eagerly while the hook %s is active", self._work.name, name)
        return bool(hooks)

    def _give_up(self, reason):
        self.reset()
        self.why_not = reason
        if self._required:
            raise CaptureError(f"{self._work.name} cannot be captured, which is required: {reason}")
        announce("%s runs eagerly, it cannot be captured: %s", self._work.name, reason)

"""Wraps what computes in a training step, so that each call is a span with the layer that it belongs to.

Chainer's hooks of functions would do that, too, but where there are any a converted model fuses nothing. So the methods
themselves are replaced for a while: the primitives of the device, ``forward`` of all function nodes, what Chainer's
backward pass calls for each node, and the step of the optimizer.

A function belongs to the link in which it is applied, and so does its backward pass. A batch normalization that waits
for an addition or a ReLU (:mod:`mixprec.rewrite.deferred`) is computed in the link after it; it belongs, fused, to that
of the batch normalization. The sum of two gradients belongs to the layer whose backward pass gave the second one.

Nodes of mixprec are their primitives: what one does beside, Python above all, is not a call. The nodes of Chainer are
themselves, without the primitives and nodes inside of them. Their ``backward`` applies other nodes, except in functions
of the old style.
"""

import contextlib
import functools
import weakref

import chainer
import numpy as np
from chainer import _backprop_utils, function, function_node

from benchmarks import floors
from benchmarks.profile import kinds
from benchmarks.profile.spans import Key
from mixprec.backends.cudnn.plans import Plan
from mixprec.backends.launch import CupyLauncher
from mixprec.backends.primitives import NAMES
from mixprec.functions.concatenation import Concatenation
from mixprec.functions.layout import Dense
from mixprec.optimizer.step import OptimizerStep
from mixprec.rewrite.fusions import Normalization

_CLASSIFIER, _NETWORK, _STEP = "(classifier)", "(network)", "(step)"
_PREDICTOR = "/predictor"
_PRIMITIVES = [name for name in NAMES if name != "conv_form"]  # which computes nothing
_OURS = "mixprec."
_CONVOLUTIONS = kinds.CONV_FPROP, kinds.CONV_DGRAD, kinds.CONV_WGRAD
_COPYING = (Concatenation, Dense)  # of ours, without a primitive


@contextlib.contextmanager
def watching(spans, optimizer, primitives, rates, *, tf32=False):
    """Inside of the block all calls of a model's training steps are spans; afterwards nothing is wrapped any more.

    Args:
        spans: :class:`~benchmarks.profile.spans.Spans`.
        optimizer: :class:`mixprec.MixedPrecisionOptimizer`; its model is a classifier, or any other link.
        primitives: those of the device of its model.
        rates: :class:`~benchmarks.rates.Rates` of the machine.
        tf32: whether convolutions of float32 may be rounded to TF32, and so have its rate.
    """
    watch = _Watch(spans, optimizer, rates, tf32)
    with contextlib.ExitStack() as stack:
        for name in _PRIMITIVES:
            stack.enter_context(_replaced(primitives, name, functools.partial(watch.primitive, name)))
        for cls in _with_forward(function_node.FunctionNode):
            stack.enter_context(_replaced(cls, "forward", watch.forward))
        stack.enter_context(_replaced(_backprop_utils, "backprop_step", watch.backward))
        stack.enter_context(_replaced(_backprop_utils, "_reduce", watch.sum))
        stack.enter_context(_replaced(Normalization, "apply", watch.normalization))
        stack.enter_context(_replaced(OptimizerStep, "run", watch.update))
        stack.enter_context(_replaced(Plan, "run", functools.partial(watch.engine, lambda plan, *_: plan.engine)))
        stack.enter_context(_replaced(CupyLauncher, "launch", functools.partial(watch.engine, _kernel_of)))
        stack.enter_context(_Links(watch))
        yield


@contextlib.contextmanager
def _replaced(owner, name, wrap):
    """Inside of the block an attribute of an object, class or module is what ``wrap`` makes of it."""
    before = vars(owner)
    own = name in before
    original = getattr(owner, name)
    setattr(owner, name, wrap(original))
    try:
        yield
    finally:
        if own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)


def _with_forward(cls):
    """Returns the set of all classes of function nodes that have a ``forward`` of their own."""
    found = {cls} if "forward" in vars(cls) else set()
    return found.union(*map(_with_forward, cls.__subclasses__()))


class _Links(chainer.LinkHook):
    name = "benchmarks.profile"

    def __init__(self, watch):
        self._watch = watch

    def forward_preprocess(self, args):
        self._watch.enter(args.link)

    def forward_postprocess(self, args):
        self._watch.leave()


class _Watch:
    """See :func:`watching`."""

    def __init__(self, spans, optimizer, rates, tf32):
        self._spans, self._rates, self._tf32 = spans, rates, tf32
        self._names = {id(link): _shown(name) for name, link in reversed(list(optimizer.target.namedlinks()))}
        self._optimizer, self._moved_by_update = optimizer, None
        self._layers = [_STEP]  # those in which the model is
        self._layer_of = weakref.WeakKeyDictionary()  # by function node
        self._node = None  # whose forward pass is under way
        self._in_primitive = self._in_sum = False
        self._engines = {}  # of the primitive, in the order of their first runs

    def enter(self, link):
        """A link is called."""
        self._layers.append(self._names.get(id(link), self._layers[-1]))

    def leave(self):
        """It has returned."""
        self._layers.pop()

    @contextlib.contextmanager
    def _in(self, layer):
        depth = len(self._layers)
        self._layers.append(layer)
        try:
            yield
        finally:
            del self._layers[depth:]  # also what links have left that have failed

    def primitive(self, name, primitive):
        """Returns a primitive whose outermost calls are spans."""

        @functools.wraps(primitive)
        def run(*arguments, **keywords):
            if self._in_primitive:
                return primitive(*arguments, **keywords)
            self._in_primitive = True
            try:
                with self._spans.span() as span:
                    self._engines.clear()
                    result = primitive(*arguments, **keywords)
            finally:
                self._in_primitive = False
            given = floors.arrays_of((arguments, *keywords.values()))
            new = [array for array in floors.arrays_of(result) if not any(array is each for each in given)]
            moved = floors.moved([*given, *new])
            kind = kinds.GRADIENT_SUM if self._in_sum else kinds.of_primitive(name)
            operations = floors.operations(name, arguments, result)
            span.key = self._key(kind, name, floors.arrays_of(arguments), moved, operations, ", ".join(self._engines))
            return result

        return run

    def engine(self, name_of, run):
        """Returns what runs an engine or an own kernel, whose name is noted; ``name_of`` has it from the arguments."""

        @functools.wraps(run)
        def noting(*arguments):
            result = run(*arguments)
            self._engines[name_of(*arguments)] = None
            return result

        return noting

    def forward(self, forward):
        """Returns a ``forward`` of function nodes that is a span, and remembers their layers."""

        @functools.wraps(forward)
        def run(node, inputs):
            if node is self._node:  # of a parent class
                return forward(node, inputs)
            self._layer_of[node] = self._layers[-1]
            outer, self._node = self._node, node
            try:
                if not _computes(node):
                    return forward(node, inputs)
                with self._spans.span() as span:
                    outputs = forward(node, inputs)
            finally:
                self._node = outer
            cls = _class_of(node)
            kind = kinds.GRADIENT_SUM if self._in_sum else kinds.of_function(cls)
            operations = floors.operations_of_function(cls.__name__, inputs, outputs)
            span.key = self._key(kind, cls.__name__, inputs, floors.moved((inputs, outputs)), operations)
            return outputs

        return run

    def backward(self, backprop_step):
        """Returns Chainer's step of the backward pass, which is in the layer of its node."""

        @functools.wraps(backprop_step)
        def run(node, indexes, grad_outputs, *rest):
            with self._in(self._layer_of.get(node, self._layers[-1])):
                if not isinstance(node, (function.FunctionAdapter, *_COPYING)):
                    backprop_step(node, indexes, grad_outputs, *rest)
                    return
                given = [each.array for each in grad_outputs if each is not None]
                moved = floors.moved((given, [node.inputs[place] for place in indexes]))
                with self._spans.span() as span:
                    backprop_step(node, indexes, grad_outputs, *rest)
                cls = _class_of(node)
                span.key = self._key(kinds.of_function(cls), f"{cls.__name__} backward", given, moved, 0)

        return run

    def sum(self, reduce):
        """Returns the sum of gradients in Chainer's backward pass, which is of a kind of its own."""

        @functools.wraps(reduce)
        def run(gradients):
            outer, self._in_sum = self._in_sum, True
            try:
                return reduce(gradients)
            finally:
                self._in_sum = outer

        return run

    def normalization(self, apply):
        """Returns the computation of a deferred batch normalization, in its own layer."""

        @functools.wraps(apply)
        def run(normalization, *arguments, **keywords):
            with self._in(_shown(normalization.link) if normalization.link else self._layers[-1]):
                return apply(normalization, *arguments, **keywords)

        return run

    def update(self, step):
        """Returns the optimizer's step, as one span."""

        @functools.wraps(step)
        def run(batched, *arguments):
            with self._in(_STEP), self._spans.span(fresh=True) as span:
                result = step(batched, *arguments)
            if self._moved_by_update is None:  # afterwards, as the first step makes states
                self._moved_by_update = _bytes_of_update(self._optimizer)
            span.key = Key(_STEP, kinds.UPDATE, "update", "", "", *self._floor(self._moved_by_update, 0, ""))
            return result

        return run

    def _key(self, kind, name, given, moved, operations, engines=""):
        given = list(given)
        dtype = np.dtype(given[0].dtype).name if given else ""
        if self._tf32 and dtype == "float32" and kind in _CONVOLUTIONS:
            dtype = "tf32"
        shapes = floors.shapes_of(given)
        return Key(self._layers[-1], kind, name, shapes, engines, *self._floor(moved, operations, dtype))

    def _floor(self, moved, operations, dtype):
        return floors.floor(moved, operations, dtype, self._rates)


def _shown(path):
    """Returns a path of ``namedlinks`` of a classifier as it is shown: without its beginning, which all have."""
    if path.startswith(_PREDICTOR + "/"):
        return path[len(_PREDICTOR) + 1 :]
    return {"/": _CLASSIFIER, _PREDICTOR: _NETWORK}.get(path, path.lstrip("/"))


def _kernel_of(launcher, kernel, *_):
    return kernel.name


def _class_of(node):
    return type(node.function) if isinstance(node, function.FunctionAdapter) else type(node)


def _computes(node):
    return isinstance(node, _COPYING) or not type(node).__module__.startswith(_OURS)


def _bytes_of_update(optimizer):
    """Returns the bytes that a step reads and writes, counted as :data:`benchmarks.floors.UPDATE_BYTES` counts.

    Each gradient is read twice, first to be checked; masters, and the states that there are, are read and written; a
    parameter that is a copy of its master is read when gradients are checked and before it is written.
    """
    moved = 0
    for param in optimizer.target.params():
        master = optimizer.master(param)
        states = list((master.update_rule.state or {}).values())
        moved += 2 * floors.moved([param.array, master.array, *states])  # the gradient is of the parameter's size
        moved += 3 * floors.moved(param.array) * (param.array is not master.array)
    return moved

"""A training step that is recorded once, and then run again with everything but the computing.

What is replaced is the innermost of a kernel call: ``forward`` of Chainer's function nodes, and the primitives of
NumPy, which those of mixprec call. What they returned, and what ``forward`` set on the node, is given back, in the same
order. Type checks, graphs, rules, links and the order of the backward pass run as ever.
"""

import contextlib
import functools

import numpy as np
from chainer import function_node

from mixprec.backends import primitives_of
from mixprec.backends.primitives import Primitives

PRIMITIVES = primitives_of(np.empty(0))
_OURS = "mixprec."
_NAMES = [name for name, value in vars(Primitives).items() if callable(value) and not name.startswith("_")]


class Tape:
    """What was computed in one step.

    Args:
        step: callable that runs it; it is called once, for real.

    Attributes:
        calls: list of ``(class of a node or name of a primitive, outputs, attributes of the node)``.
    """

    def __init__(self, step):
        self.calls = []
        self._recording = False
        with self._stubs(self._recording_forward, self._recording_primitive):
            step()

    @contextlib.contextmanager
    def replaying(self):
        """Gives a function that starts the tape afresh, to be called before each step in the block.

        Raises:
            RuntimeError: a step computes something else than what was recorded, or less.
        """
        self._next = iter(()).__next__
        with self._stubs(self._replay_forward, self._replay_primitive):
            yield self._start
            self._check_end()

    def _start(self):
        self._check_end()
        self._next = iter(self.calls).__next__

    def _check_end(self):
        with contextlib.suppress(StopIteration):
            kind, *_ = self._next()
            raise RuntimeError(f"a step has ended before {_name(kind)}, which it computed when it was recorded")

    def _recording_forward(self, forward):
        @functools.wraps(forward)
        def run(node, inputs):
            if self._recording:
                return forward(node, inputs)
            before = dict(vars(node))
            with self._outermost():
                outputs = forward(node, inputs)
            own = {name: each for name, each in vars(node).items() if name not in before or each is not before[name]}
            self.calls.append((type(node), outputs, own))
            return outputs

        return run

    def _recording_primitive(self, name):
        primitive = getattr(PRIMITIVES, name)

        def run(*args, **kwargs):
            if self._recording:
                return primitive(*args, **kwargs)
            with self._outermost():
                outputs = primitive(*args, **kwargs)
            self.calls.append((name, outputs, None))
            return outputs

        return run

    @contextlib.contextmanager
    def _outermost(self):
        self._recording = True
        try:
            yield
        finally:
            self._recording = False

    def _replay_forward(self, forward):
        def run(node, inputs):
            outputs, attributes = self._pop(type(node))
            node.__dict__.update(attributes)
            return outputs

        return run

    def _replay_primitive(self, name):
        return lambda *args, **kwargs: self._pop(name)[0]

    def _pop(self, kind):
        try:
            recorded, outputs, attributes = self._next()
        except StopIteration:
            raise RuntimeError(f"a step computes {_name(kind)}, which it did not when it was recorded") from None
        if recorded is not kind:
            raise RuntimeError(f"a step computes {_name(kind)}, where {_name(recorded)} was recorded")
        return outputs, attributes

    @contextlib.contextmanager
    def _stubs(self, forward_of, primitive_of):
        stubs = {cls: forward_of(cls.forward) for cls in _node_classes()}
        before = {cls: vars(cls).get("forward") for cls in stubs}
        primitives = {name: primitive_of(name) for name in _NAMES}
        vars(PRIMITIVES).update(primitives)
        try:
            for cls, stub in stubs.items():
                cls.forward = stub
            yield
        finally:
            for cls, own in before.items():
                if own is not None:
                    cls.forward = own
                elif "forward" in vars(cls):
                    del cls.forward
            for name in _NAMES:
                del vars(PRIMITIVES)[name]


def _node_classes(cls=function_node.FunctionNode):
    """Returns the set of all classes of function nodes that are not of mixprec."""
    found = set() if cls.__module__.startswith(_OURS) else {cls}
    return found.union(*map(_node_classes, cls.__subclasses__()))


def _name(kind):
    return kind if isinstance(kind, str) else kind.__name__

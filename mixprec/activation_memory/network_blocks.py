"""Finds the blocks of a network: the links to pass to :func:`mixprec.recompute` for the smallest memory.

The network is called once on an example, and the arrays that its functions retain for the backward pass are counted. A
recomputed block keeps its inputs only; during its backward pass all of its inside is in memory temporarily.
"""

import contextlib
import dataclasses
import random
import weakref
from typing import Any

import chainer
import numpy as np

from mixprec.activation_memory import retained
from mixprec.activation_memory.recomputation import keeping_all
from mixprec.activation_memory.repeatable_call import reporting_nothing
from mixprec.base.nested import mapped
from mixprec.base.scoped import scoped
from mixprec.functions import watching
from mixprec.precision.conversion_state import state_of
from mixprec.rewrite.deferred import Deferred, compute
from mixprec.rewrite.example import call_on_example, without_trace

# A block saves at least these fractions of its inside, and of the total; a batch normalization alone saves almost
# nothing.
_LEAST, _LEAST_OF_ALL = 0.25, 0.01


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of a network.

    Attributes:
        name: path of the link in the model.
        link: the link.
        inputs: bytes of its inputs that were computed by functions.
        inside: bytes that its functions retain, including inputs.
    """

    name: str
    link: chainer.Link
    inputs: int
    inside: int


@dataclasses.dataclass(frozen=True)
class Blocks:
    """The blocks of a network.

    Attributes:
        blocks: tuple of :class:`Block`, in the order of their calls.
        kept: bytes that are kept for the backward pass if nothing is recomputed.
        kept_with: bytes that are kept if the blocks are recomputed.
        largest: the most bytes that the inside of a block adds during its backward pass.
    """

    blocks: tuple[Block, ...]
    kept: int
    kept_with: int
    largest: int


def blocks_of(model: chainer.Link, *example: Any) -> Blocks:
    """Finds the blocks of a model; nothing is marked, and the model does not change.

    Blocks are not nested. Links that are called several times in a call of the model are not blocks, nor are links that
    save nothing.

    Args:
        model: a link, converted or not.
        example: arguments of the model; its results are not used. Sizes are for this batch.
    """
    recorder = _Recorder()
    with without_trace(model), unnoticed(model), keeping_all(), recorder, watching.watch_alone(recorder.made):
        result = call_on_example(model, example, train=True)
    root = recorder.finished()
    names = {id(link): name for name, link in reversed(list(model.namedlinks()))}
    once = [call for call in root.below() if call.has_results and recorder.counts[id(call.link)] == 1]
    candidates = [call for call in once if id(call.link) in names and _saves(call, root)]
    best = _Choice(root, [])
    for limit in sorted({call.inside for call in candidates}):
        chosen = list(_topmost(root, {call for call in candidates if call.inside <= limit}))
        found = _Choice(root, chosen)
        if found.peak < best.peak:
            best = found
    del result  # it holds the graph
    blocks = [Block(names[id(call.link)], call.link, _bytes(call.inputs), call.inside) for call in best.chosen]
    return Blocks(tuple(blocks), _bytes(root.memory), best.kept, best.largest)


@contextlib.contextmanager
def unnoticed(model):
    """A context for calling the model on an example: nothing is reported, and the state of ``random`` is restored."""
    states = [state for state in map(state_of, model.links()) if state is not None]
    with contextlib.ExitStack() as stack:
        for conversion in {state.conversion for state in states}:
            stack.enter_context(scoped(conversion, on_example=True))
        stack.callback(random.setstate, random.getstate())
        stack.enter_context(reporting_nothing())
        yield


class _Call:
    """A call of a link.

    Args:
        link: the link; ``None`` for the caller of the model.

    Attributes:
        functions: function nodes that it has made itself, not in nested calls; weak references until they are counted.
        calls: list of nested calls.
        inputs: memory of its inputs, ``{key: bytes}``.
        memory: memory that its functions and nested calls retain, ``{key: bytes}``.
        own: memory that its own functions retain, ``{key: bytes}``.
        has_results: whether its arguments and its results contain variables.
    """

    def __init__(self, link):
        self.link = link
        self.functions, self.calls = [], []
        self.inputs, self.own, self.memory = {}, {}, {}
        self.has_results = False

    @property
    def inside(self):
        return _bytes(self.memory)

    def below(self):
        """Yields this call and all nested calls."""
        yield self
        for call in self.calls:
            yield from call.below()

    def count(self):
        """Counts retained memory after the call of the model."""
        for function in filter(None, (reference() for reference in self.functions)):
            for array in _retained(function):
                self.own |= _memory(array)
        self.memory = dict(self.own)
        for call in self.calls:
            call.count()
            self.memory |= call.memory


class _Recorder(chainer.LinkHook):
    """Records the calls of links, and which functions they make."""

    name = "mixprec.blocks_of"

    def __init__(self):
        self._open = [_Call(None)]
        self._held = []  # kept until all is counted, as memory is identified by its address
        self.counts = {}

    def made(self, node, results):
        """Called for each function that joins the graph."""
        self._open[-1].functions.append(weakref.ref(node))

    def forward_preprocess(self, args):
        call = _Call(args.link)
        self.counts[id(args.link)] = self.counts.get(id(args.link), 0) + 1
        variables = _variables((args.args, args.kwargs))
        call.has_results = bool(variables) and all(map(_is_there, variables))
        for x in variables:
            if type(x) is not Deferred and x.creator_node is not None:
                self._held.append(x.array)
                call.inputs |= _memory(x.array)
        self._open[-1].calls.append(call)
        self._open.append(call)

    def forward_postprocess(self, args):
        results = _variables(args.out)
        call = self._open[-1]
        call.has_results &= bool(results) and all(map(_is_there, results))
        self._open.pop()

    def finished(self):
        """Returns the outermost :class:`_Call`, after the call of the model."""
        self._open[0].count()
        return self._open[0]


class _Choice:
    """The savings of a set of blocks.

    Args:
        root: the outermost :class:`_Call`.
        chosen: the calls that are recomputed.
    """

    def __init__(self, root, chosen):
        kept = {}
        for call in _outside(root, set(chosen)):
            kept |= call.own
        for call in chosen:
            kept |= call.inputs
        self.chosen = chosen
        self.kept = _bytes(kept)
        self.largest = max((_bytes(call.memory) - _bytes(call.memory, kept) for call in chosen), default=0)
        self.peak = self.kept + self.largest


def _is_there(variable):
    """Whether a variable is computed at the edge of a block as without the block; a normalization may be deferred."""
    if type(variable) is Deferred and variable.chain and variable.chain[-1] != "Add":
        compute(variable)  # it is complete, with its ReLU
    return type(variable) is not Deferred


def _saves(call, root):
    """Whether a block is worthwhile: inputs that would not be kept without it count against it."""
    unkept = _bytes(call.inputs) - _bytes(call.inputs, root.memory)
    saved = call.inside - _bytes(call.memory, call.inputs) - unkept
    return saved > 0 and saved >= max(_LEAST * call.inside, _LEAST_OF_ALL * _bytes(root.memory))


def _topmost(call, chosen):
    if call in chosen:
        yield call
    else:
        for each in call.calls:
            yield from _topmost(each, chosen)


def _outside(call, chosen):
    if call not in chosen:
        yield call
        for each in call.calls:
            yield from _outside(each, chosen)


def _retained(function):
    yield from (array for _, array in retained.references_of(function))
    for value in vars(function).values():  # arrays that stay on the device in any case, and named tuples of arrays
        values = value if isinstance(value, tuple) else (value,)
        yield from (each for each in values if isinstance(each, chainer.get_array_types()))


def _bytes(memory, among=None):
    """Returns the bytes of memory, or of its intersection with ``among``."""
    return sum(size for key, size in memory.items() if among is None or key in among)


def _memory(array):
    """Returns ``{key: bytes}`` of the memory in which an array lies."""
    while isinstance(getattr(array, "base", None), chainer.get_array_types()):
        array = array.base
    # NumPy has no buffer for bfloat16, which `data` would be; CuPy's `data` has `mem`.
    block = None if isinstance(array, np.ndarray) else getattr(getattr(array, "data", None), "mem", None)
    return {id(array): array.nbytes} if block is None else {block.ptr: block.size}


def _variables(value):
    found = []
    with contextlib.suppress(TypeError):  # a user's class that looks like a dict
        mapped(value, lambda x: found.append(x) if isinstance(x, chainer.Variable) else None)
    return found

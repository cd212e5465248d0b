"""The function node of a call whose intermediate results are recomputed, and :func:`run`, which makes it."""

import weakref

import chainer
import numpy as np

from mixprec.activation_memory import cupy_draws, graph_edge
from mixprec.activation_memory.repeatable_call import RepeatableCall
from mixprec.activation_memory.repetition import computed
from mixprec.base import arguments
from mixprec.base.announcements import announce
from mixprec.base.nested import mapped
from mixprec.functions import watching

_NOISE = "chainer.functions.noise."
_CASTS = "mixprec.functions.layout"  # casts of arrays; a converted model holds them until its call ends


class Recomputed(chainer.FunctionNode):
    """Represents a call in the graph. Its inputs are all outer variables that the results depend on.

    Besides arguments these are parameters, and variables that the function gets from elsewhere. Its backward calls the
    function again and runs a backward pass over that graph, as a part of the outer pass, to whose gradients it adds.

    Args:
        name: name of the called link or function.
        call: :class:`~mixprec.activation_memory.repeatable_call.RepeatableCall`.
        find: function that returns the outputs in the result of a further call, a list.
    """

    takes_two_terms = True
    one_pass_only = "mixprec.recompute"

    def __init__(self, name, call, find):
        self._name = name
        self._call = call
        self._find = find

    @property
    def label(self):
        """The name of the called link or function."""
        return f"recompute({self._name})"

    def join(self, nodes, outputs, ranks):
        """Puts the node into the graph.

        Args:
            nodes: variable nodes, the inputs.
            outputs: tuple of variables.
            ranks: ranks that the outputs would have if all functions of the call were in the graph.
        """
        first = max([node.rank for node in nodes])
        depth = max(max(ranks) - first, 1)
        self.rank = first - (1 - 1 / depth) / 2  # keeps the order among other functions of the inputs
        self.inputs, self.outputs = tuple(nodes), tuple([weakref.ref(y.node) for y in outputs])
        self._input_layouts, self._output_layouts = (None,) * len(nodes), (None,) * len(outputs)
        self._output_count = len(outputs)
        self.lazy_grad_sum = chainer.config.lazy_grad_sum
        held = {id(node) for node in self._call.nodes}
        self._input_indexes_to_retain = tuple([index for index, node in enumerate(nodes) if id(node) in held])
        for y, rank in zip(outputs, ranks, strict=True):
            y.creator_node = self
            y.node._rank = rank

    def backward_accumulate(self, target_input_indexes, grad_outputs, grad_inputs):
        if chainer.config.enable_backprop:
            raise RuntimeError(
                f"{self.label} has no double backprop: call backward() without enable_double_backprop=True, or do "
                f"without mixprec.recompute"
            )
        outputs = self._outputs_again()
        given = [(y.node, _for(y, dy)) for y, dy in zip(outputs, grad_outputs, strict=True) if dy is not None]
        sums = zip(target_input_indexes, grad_inputs, strict=True)
        given += [(self.inputs[index], gradient) for index, gradient in sums if gradient is not None]
        with graph_edge.shut(self.inputs) as edges:
            chainer._backprop._backprop_to_all(given, False, None)
        return tuple([edges[index].gradient for index in target_input_indexes])

    def _outputs_again(self):
        with cupy_draws.refused(self.label), self._call.again() as result:
            outputs = self._find(result)
            for y in outputs or ():
                computed(y)
        nodes = [reference() for reference in self.outputs]
        if outputs is None or not all(
            node is None or (y.shape, y.dtype) == (node.shape, node.dtype)
            for y, node in zip(outputs, nodes, strict=True)
        ):
            raise RuntimeError(f"{self.label}: the repeated call returned other variables than the first call")
        return outputs


def run(name, function, args, kwargs, links):
    """Returns the result of a call whose intermediate results are not kept.

    Args:
        name: name of the called link or function, for messages.
        function: callable.
        args: positional arguments.
        kwargs: keyword arguments.
        links: list of links whose attributes it may change.
    """
    mapped((args, kwargs), lambda x: _checked(name, x))
    call = RepeatableCall(function, args, kwargs, links)
    inside = _Inside(name, call)
    result = call.first(inside.made)
    with watching.watch_alone(inside.made):
        found = _Outputs(result, call.attributes.changed, inside.functions)
    result = _joined(name, call, found, inside.functions) if found.variables else result
    found = None
    if any(type(node).__module__ != _CASTS for node in inside.functions):
        announce(
            "mixprec.recompute(%s): inner results are referenced elsewhere, so that their memory is not freed", name
        )
    return result


def _checked(name, x):
    """Checks an argument, and computes a deferred variable."""
    if hasattr(type(x), "__next__"):
        raise TypeError(
            f"mixprec.recompute({name}): an argument is an iterator, which a second call would find exhausted; "
            f"found {arguments.found(x)}: pass a list"
        )
    computed(x, "recompute")


class _Inside:
    """The functions that a call makes.

    Args:
        name: name of the called link or function.
        call: :class:`~mixprec.activation_memory.repeatable_call.RepeatableCall`.

    Attributes:
        functions: the function nodes that are alive, a set.
    """

    def __init__(self, name, call):
        self.functions = weakref.WeakSet()
        self._name = name
        self._call = call
        self._keys = 0

    def made(self, node, results):
        """Called for each function that joins the graph."""
        self.functions.add(node)
        keys, self._keys = self._keys, len(self._call.keys)
        if type(node).__module__.startswith(_NOISE) and self._keys == keys and not _is_on_host(results):
            raise RuntimeError(
                f"mixprec.recompute({self._name}): {node.label} draws random numbers from CuPy, which cannot be "
                f"reproduced: convert the model by mixprec.convert, or leave {node.label} outside"
            )


def _joined(name, call, found, inside):
    """Replaces the functions inside by one node, and returns the result of the call with its outputs."""
    inside.difference_update(call.repetition.casts())
    nodes = [node for node in call.nodes if node.requires_grad]
    nodes = list(dict.fromkeys([*nodes, *_edge(found.variables, inside)]))
    outputs = found.replace()
    call.attributes.forget_results(nodes)
    if nodes:
        node = Recomputed(name, call, found.find)
        node.join(nodes, outputs, [y.rank for y in found.variables])
        watching.report(node, outputs)
    result, found.result, found.variables = found.result, None, None
    return result


class _Outputs:
    """The variables that a call has computed and left in its result, or in attributes of links.

    Args:
        result: result of the call, with variables in lists, tuples and dicts.
        changed: changed attributes of links.
        inside: the function nodes of the call.

    Attributes:
        variables: the variables that the call has computed, a list.
        result: the result.
    """

    def __init__(self, result, changed, inside):
        self.result = result
        values = ((change, key, value) for change in changed for key, value in change.after.items())
        self._slots = [(change, key) for change, key, value in values if isinstance(value, chainer.Variable)]
        every = self._every(result)
        for variable in every:
            computed(variable)
        known, self.variables, self._places = set(), [], []
        for index, variable in enumerate(every):
            if variable.creator_node in inside and id(variable) not in known:
                known.add(id(variable))
                self.variables.append(variable)
                self._places.append(index)
        self._count = len(every)

    def find(self, result):
        """Returns the corresponding variables in the result of another call; ``None`` if they do not correspond."""
        every = self._every(result)
        return [every[index] for index in self._places] if len(every) == self._count else None

    def replace(self):
        """Replaces :attr:`variables` by new variables, and returns these, a tuple."""
        new = {id(y): _like(y) for y in self.variables}
        self.result = mapped(self.result, lambda x: new.get(id(x), x))
        for change, key in self._slots:
            change.holder[key] = new.get(id(change.holder[key]), change.holder[key])
        return tuple(new.values())

    def _every(self, result):
        found = []
        mapped(result, lambda x: found.append(x) if isinstance(x, chainer.Variable) else None)
        in_slots = [change.get(key) for change, key in self._slots]
        found += [value for value in in_slots if isinstance(value, chainer.Variable)]
        return found


def _like(y):
    return chainer.Variable._init_unchecked(
        y.raw_array, name=y.name, requires_grad=y.requires_grad, is_chainerx_array=False
    )


def _edge(variables, inside):
    """Yields the outer variable nodes that require gradients and are inputs of functions inside."""
    todo = [y.creator_node for y in variables]
    seen = set(todo)
    while todo:
        function = todo.pop()
        for x in function.inputs:
            creator = x.creator_node
            if not x.requires_grad:
                continue
            if creator in inside:
                if creator not in seen:
                    seen.add(creator)
                    todo.append(creator)
            elif creator is not None or x.get_variable_or_none() is not None:  # otherwise made in the call
                yield x


def _for(y, gradient):
    """Returns the gradient of a variable; as two terms only for a function that accepts two."""
    if not getattr(y.creator_node, "takes_two_terms", False):
        gradient.node  # noqa: B018  (a Sum is computed now)
    return gradient


def _is_on_host(variables):
    return all(chainer.backend.get_array_module(y.raw_array) is np for y in variables)

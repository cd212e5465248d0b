"""The graph of a Chainer model in ONNX, as ``onnx_chainer`` writes it, and the origin of each node.

:func:`mixprec.export.onnx` calls :func:`trace` for two batch sizes, and compares the graphs.
"""

import contextlib
import copy
import gc
import warnings

import chainer
import chainer.functions as F
import numpy as np

from mixprec import rewrite
from mixprec.activation_memory.recomputation import keeping_all
from mixprec.base import arguments, nested
from mixprec.export import converters
from mixprec.export.export_error import ExportError
from mixprec.export.sequence_links import join_sequences
from mixprec.rewrite.example import fault

OPSET = 11  # the newest that onnx_chainer writes
LARGEST = 2047 << 20  # bytes of weights: a file of Protocol Buffers has less than 2 GiB


def plain_copy(model):
    """Returns a copy of a model on the CPU that computes as plain Chainer does, in float32.

    Args:
        model: any :class:`chainer.Link`; for a :class:`chainer.links.Classifier`, its predictor is copied. It may be
            converted, and stays as it is. Weights are the float32 masters, if an optimizer has them.

    Raises:
        TypeError: ``model`` is not a link.
        ExportError: a parameter has no array yet, a number is not finite, or the weights are too large.
    """
    arguments.instance("model", model, chainer.Link, "a chainer.Link")
    if isinstance(model, chainer.links.Classifier):
        model = model.predictor
    for name, param in model.namedparams():
        if param.array is None:
            raise ExportError(f"{name} has no shape yet: call the model on an example, or load its weights")
    saved = chainer.serializers.DictionarySerializer()
    saved.save(model)
    if sum(array.nbytes for array in saved.target.values()) > LARGEST:
        raise ExportError(f"the weights have more than {LARGEST >> 20} MiB, and an ONNX file has 2 GiB at most")
    for name, array in saved.target.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ExportError(f"/{name} has numbers that are not finite")
    plain = separate(model)
    for link in plain.links():
        for name in link._params:
            param = getattr(link, name)  # without its update rule, which may have states as large
            link.__dict__[name] = copy.deepcopy(param, {id(param.update_rule): None})
        for name in link._persistent:
            link.__dict__[name] = copy.deepcopy(getattr(link, name))
    rewrite.revert(plain)
    for link in plain.links():
        with contextlib.suppress(TypeError):  # it takes arguments: then the state stays, and may not fit
            if hasattr(link, "reset_state"):  # of a recurrent link: the state of an earlier batch
                link.reset_state()
    for param in plain.params():
        param.array = np.array(chainer.get_device("@numpy").send(param.array))
    chainer.serializers.NpzDeserializer(saved.target).load(plain)
    return plain


def separate(model):
    """Returns a copy of a model that shares its arrays, but neither links nor lists of links.

    Not ``model.copy("copy")``, which fails if there is a lambda in a ``Sequential``.
    """
    result = model.copy(mode="share")
    links = {id(old): new for old, new in zip(model.links(), result.links(), strict=True)}
    for link in result.links():
        for name, value in link.__dict__.items():
            if name not in ("_children", "_layers", "_local_link_hooks"):  # which Chainer has copied
                link.__dict__[name] = nested.mapped(value, lambda each: links.get(id(each), each))
    return result


def trace(model, inputs):
    """Calls a model on its inputs, and returns the graph that ``onnx_chainer`` makes of it.

    Args:
        model: from :func:`plain_copy`; it is not changed.
        inputs: list of arrays, whose first axis is the batch.

    Returns:
        ``(graph, origins)``: an :class:`onnx.ModelProto` with outputs ``output_0``, ``output_1`` and so on, and a dict
        from the beginning of the name of each node to ``"function of link"``.

    Raises:
        ExportError: see :func:`mixprec.export.onnx`.
    """
    import onnx_chainer

    model = _Flat(join_sequences(separate(model)))  # a recurrent link keeps the state of this batch
    origins = _Origins(model)
    with (
        warnings.catch_warnings(),
        keeping_all(),
        chainer.using_config("dtype", np.dtype(np.float32)),
        chainer.using_config("show_experimental", False),
    ):
        warnings.simplefilter("ignore")
        try:
            with origins:
                graph = onnx_chainer.export(
                    model,
                    tuple(inputs),
                    opset_version=OPSET,
                    output_names=model.names,
                    external_converters=origins.follow(converters.all_of_them()),
                )
        except Exception as error:
            raise origins.explained(error) from error
        finally:
            origins.forget()
    return graph, origins.origins


class _Flat(chainer.Chain):
    """Calls a model and returns its variables as one flat list."""

    def __init__(self, model):
        super().__init__()
        self._model = model
        self.namedparams, self.namedlinks = model.namedparams, model.namedlinks
        self.names = []  # of the outputs, when it has been called; onnx_chainer changes their order, if it names them

    def forward(self, *inputs):
        found = variables(self._model(*inputs))
        if not found:
            raise TypeError("it returns no chainer.Variable")
        for index, variable in enumerate(found):
            has_origin = variable.creator_node is not None or isinstance(variable, chainer.Parameter)
            if not has_origin and all(variable is not each for each in inputs):
                made = "is made from an array: a function such as F.ceil is not in the graph, or x.array was read"
                raise ExportError(f"output {index} {made}")
        self.names += [f"output_{index}" for index in range(len(found))]
        # A variable has one name: if it is returned twice, or no function has made it, it is copied by a function.
        seen = {id(variable): index for index, variable in reversed(list(enumerate(found)))}
        return [
            variable if seen[id(variable)] == index and variable.creator_node is not None else F.identity(variable)
            for index, variable in enumerate(found)
        ]


def variables(result):
    """Returns all variables in a model's result: tuples, lists and dicts, nested in any way."""
    if isinstance(result, chainer.Variable):
        return [result]
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, (tuple, list)):
        return [variable for part in result for variable in variables(part)]
    return []


class _Origins(chainer.LinkHook):
    """Knows the link that called each function, and the function that is converted."""

    name = "mixprec.export"

    def __init__(self, model):
        self.origins = {}
        self._names = {id(link): name for name, link in model.namedlinks()}
        self._stack, self._functions, self._now = [], {}, None
        self._hook = _Calls(self._note)

    def __enter__(self):
        self._hook.__enter__()
        return super().__enter__()

    def __exit__(self, *problem):
        super().__exit__(*problem)
        self._hook.__exit__(*problem)

    def forward_preprocess(self, args):
        self._stack.append(self._names.get(id(args.link), type(args.link).__name__))

    def forward_postprocess(self, args):
        self._stack.pop()

    def _note(self, function):
        link = self._stack[-1] if self._stack else "/"
        self._functions[id(function)] = (function, link)  # the function is held, or a later one could get its id
        if not chainer.config.enable_backprop:
            raise ExportError(f"{_name(function)} of {link} runs without backprop, and so is not in the graph")

    def forget(self):
        """Frees the arrays of the call, which are in reference cycles."""
        self._functions.clear()
        gc.collect()

    def follow(self, table):
        """Returns the converters of a table, each of which records the function that it converts."""

        def following(convert):
            def run(parameters):
                self._now = self._origin(parameters.func)
                self.origins[converters.name_of_function()] = self._now
                return convert(parameters)

            return run

        return {name: following(convert) for name, convert in table.items()}

    def _origin(self, function):
        for known, link in self._functions.values():
            if function in (known, getattr(known, "function", None)):
                return f"{_name(known)} of {link}"
        return type(function).__name__

    def explained(self, error):
        """Returns the :class:`ExportError` for an error of ``onnx_chainer``, or of the model itself."""
        if isinstance(error, ExportError):
            return error
        for function, link in self._functions.values():
            if str(error) == f"{_name(function)} is not supported":
                return ExportError(f"{_name(function)} of {link} cannot be exported: no ONNX equivalent is known")
        if self._now is None:  # the model failed
            why = fault(error, self._names) or f"{type(error).__name__}: {error}"
            return ExportError(f"the model cannot be called on the example: {why}")
        return ExportError(f"{self._now} cannot be exported: {error}")


class _Calls(chainer.FunctionHook):
    """Calls ``note`` with each function that is called."""

    name = "mixprec.export"

    def __init__(self, note):
        self._note = note

    def forward_preprocess(self, function, in_data):
        self._note(function)


def _name(function):
    """The name of a function's class; one in the old style has a node around it."""
    return type(getattr(function, "function", function)).__name__

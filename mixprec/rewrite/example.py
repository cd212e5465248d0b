"""Calls a model on an example, and leaves the model unchanged.

``convert`` does so if it is given one, and :mod:`mixprec.training` before it starts.
"""

import contextlib
import copy
import math
import traceback

import chainer
import chainer.links as L
import numpy as np
from chainer import initializers
from chainer.functions.evaluation.accuracy import Accuracy

from mixprec.backends.dropout_state import keeping_dropout
from mixprec.base import arguments
from mixprec.base.announcements import announce
from mixprec.precision.without_masters import CONVERSION

_KNOWN = (L.Linear, L.Convolution2D, L.ConvolutionND, L.Deconvolution2D, L.DeconvolutionND)


def check_example(model, example):
    """Checks an example before anything is done to a model.

    Raises:
        TypeError: it is not a valid example.
        ValueError: it does not lie on the device of the model.
    """
    arguments.instance(
        "example",
        example,
        (tuple, dict, list, chainer.Variable, *chainer.get_array_types()),
        "an array or variable, a list of them, a tuple of positional arguments, or a dict of keyword arguments",
    )
    if _is_of_numbers(example):
        make = "zeros" if isinstance(example, tuple) else "array"
        found = f"a {type(example).__name__} of numbers"
        raise TypeError(f"example must be an array; found {found}: did you mean numpy.{make}(example, numpy.float32)?")
    if isinstance(example, dict) and not all(isinstance(name, str) for name in example):
        raise TypeError(
            f"example, a dict of keyword arguments, must have strings as keys; found {arguments.found(example)}"
        )
    for array in _arrays(example):
        device = chainer.backend.get_device_from_array(array)
        if device != model.device:
            raise ValueError(
                f"example must be on the device of the model, {model.device.name}; found {device.name}: use "
                f"chainer.get_device({model.device.name!r}).send(example)"
            )


def call_on_example(model, example, *, train):
    """Calls the model in training or evaluation mode, whatever the configuration says.

    Args:
        model: a link.
        example: an array or variable, a tuple of positional arguments, or a dict of keyword arguments. A classifier
            needs no labels: of an array alone its predictor is called.
        train: whether in training mode; otherwise in evaluation mode, with a graph as well, as a model may ask for
            gradients by itself.
    """
    with chainer.using_config("train", train), chainer.using_config("enable_backprop", True):
        if isinstance(example, dict):
            return model(**example)
        inputs = example if isinstance(example, tuple) else (example,)
        if isinstance(model, L.Classifier) and len(inputs) == 1:
            return model.predictor(*inputs)
        return model(*inputs)


@contextlib.contextmanager
def without_trace(model):
    """After the block links have the attributes and statistics from before, and random numbers go on as before.

    Parameters that are initialized in it stay so; in that case random numbers do not start again, as a second model
    would get the same ones.
    """
    links = list({id(link): link for link in model.links()}.values())
    attributes = [dict(link.__dict__) for link in links]
    contents = [(value, copy.copy(value)) for link in links for value in _containers(link)]
    statistics = [(array, array.copy()) for link in links for array in _persistent_arrays(link)]
    uninitialized = [param for param in model.params() if param.array is None]
    random = np.random.get_state()
    try:
        with keeping_dropout():
            yield
    finally:
        for link, before in zip(links, attributes, strict=True):
            _reset(link, before)
        for value, before in contents:
            _refill(value, before)
        for array, values in statistics:
            array[...] = values
        if all(param.array is None for param in uninitialized):
            np.random.set_state(random)


def fault(error, names=None):
    """Returns why a link, or the accuracy, refused its arguments, as text; empty if that is not known.

    Args:
        error: the exception; its traceback leads to the link.
        names: dict from the ids of links to their names; ``None`` for converted links, which know them.
    """
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        link, x = frame.f_locals.get("self"), frame.f_locals.get("x")
        if isinstance(link, Accuracy) and len(frame.f_locals.get("in_data") or ()) == 2:
            t = frame.f_locals["in_data"][1]
            if t.dtype.kind != "i":
                return (
                    f"accuracy takes labels that are signed integers, and was given {t.dtype} {t.shape}: for labels as "
                    "probabilities, set compute_accuracy = False of the Classifier"
                )
        if isinstance(link, _KNOWN) and link.W.array is not None:
            state = link.__dict__.get(CONVERSION)
            name = (names or {}).get(id(link), state and state.name)
            found = name and _refusal(link, x)
            return found and f"{type(link).__name__ if name == '/' else name} {found}"
    return ""


def explain(error, note):
    """Adds a line to an exception; before Python 3.11 exceptions have no notes, and it is logged."""
    if hasattr(error, "add_note"):
        error.add_note(note)
    else:
        announce("%s", note)


def _refusal(link, x):
    if isinstance(x, list):
        remedy = "numpy.array(x, numpy.float32) makes one" if _is_of_numbers(x) else "numpy.stack joins several"
        return f"takes one array, and was given a list: {remedy}"
    if not hasattr(x, "dtype") or x.ndim < 2:
        return ""
    if x.dtype.kind in "iub":
        return f"takes floating-point numbers, and was given {x.dtype}: x.astype(numpy.float32) converts"
    if isinstance(link, L.Linear):
        taken, found, what = link.W.shape[1], math.prod(x.shape[1:]), "features"
    elif x.ndim != link.W.ndim:
        return f"takes arrays of {link.W.ndim} axes, (N, C, ...), and was given {x.shape}"
    else:
        is_transposed = isinstance(link, (L.Deconvolution2D, L.DeconvolutionND))
        taken, found, what = link.W.shape[0 if is_transposed else 1], x.shape[1], "channels"
        taken *= 1 if is_transposed else link.groups
    last = ": is it (N, H, W, C), and not (N, C, H, W)?" if what == "channels" and x.shape[-1] == taken else ""
    return f"takes {taken} {what}, and was given {found}{last}" if found != taken else ""


def describe(example):
    """Returns shapes and dtypes of an example, for messages."""
    return ", ".join(f"{array.shape} {array.dtype}" for array in _arrays(example)) or type(example).__name__


def _reset(link, before):
    lasting = {*link._params, *link._persistent, *getattr(link, "_children", ())}
    for name in set(link.__dict__) - set(before) - lasting:
        del link.__dict__[name]
    for name, value in before.items():
        now = link.__dict__.get(name)
        if value is None and name in link._persistent and isinstance(now, chainer.get_array_types()):
            _start_again(now, name, before.get(f"_initial_{name}"))  # of a batch normalization, which has got its size
        else:
            link.__dict__[name] = value


def _start_again(array, name, initial):
    """Gives running statistics the values that they start from."""
    initializer = initializers._get_initializer({"avg_var": 1}.get(name, 0) if initial is None else initial)
    device = chainer.backend.get_device_from_array(array)
    array[...] = initializers.generate_array(initializer, array.shape, device.xp, dtype=array.dtype, device=device)


def _containers(link):
    """Returns lists, dicts and sets in attributes of the user's own; Chainer's have names with an underscore."""
    return [value for name, value in vars(link).items() if name[0] != "_" and isinstance(value, (list, dict, set))]


def _refill(container, before):
    container.clear()
    if isinstance(container, list):
        container.extend(before)
    else:
        container.update(before)


def _persistent_arrays(link):
    values = (link.__dict__.get(name) for name in link._persistent)
    return [value for value in values if isinstance(value, chainer.get_array_types())]


def _is_of_numbers(example):
    """Whether an example is a list of numbers, also in lists of lists, or a tuple of integers, such as a shape."""
    if isinstance(example, tuple):
        return bool(example) and all(type(each) is int for each in example)
    while isinstance(example, list) and example:
        example = example[0]
    return isinstance(example, (int, float))


def _arrays(example):
    if isinstance(example, dict):
        example = tuple(example.values())
    if not isinstance(example, (tuple, list)):
        example = (example,)
    arrays = [x.array if isinstance(x, chainer.Variable) else x for x in example]
    return [array for array in arrays if isinstance(array, chainer.get_array_types())]

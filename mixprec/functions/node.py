"""The base of all function nodes: checks, layout of inputs, gradients of arrays, no double backprop.

Functions of :mod:`mixprec.functions` and the rules of :mod:`mixprec.rewrite` apply these nodes.
"""

import copy
import inspect
import weakref

import chainer
import numpy as np
from chainer import _backprop_utils, utils

from mixprec.backends import primitives_of
from mixprec.base.announcements import announce, place_of_call
from mixprec.functions import checks, sums, watching
from mixprec.functions.pending import Pending

OFFLOADED = "_offloaded"  # attribute of function nodes: buffers of mixprec.offload, which live as long as they do
_MOST_CHECKED = 1 << 14
_apply = chainer.FunctionNode.apply
_checked = set()  # arguments that have passed Node.check: classes with their options, shapes and dtypes


class Node(chainer.FunctionNode):
    """A function of arrays whose gradient is a function of arrays, too.

    A subclass has :meth:`check`, :meth:`compute` and :meth:`gradients`. Only the inputs that :meth:`compute` retains
    outlive the forward pass, and nothing does under ``chainer.no_backprop_mode()``: Chainer then lets go of the node.

    Images are (N, H, W, C). With :attr:`channels_first` they come and go as (N, C, H, W), as in Chainer, while their
    memory and their gradients stay in the order of (N, H, W, C); :mod:`mixprec.rewrite` uses nodes in this way.

    Attributes:
        name: name of the function, for messages and as the label of the node in a graph.
        image_inputs: which inputs are images, if they have four axes.
        filter_input: which input are filters (K, C / groups, R, S), or ``None``; :meth:`compute` and :meth:`retained`
            have them as (K, R, S, C / groups).
        takes_strided: whether :meth:`compute` takes inputs that are not C-contiguous; otherwise they are copied, which
            is announced once.
        makes_images: whether an output of four axes is images.
        channels_first: whether images have the shape (N, C, H, W) outside of the node.
        options: hashable value; :meth:`check` depends on it and on the shapes and dtypes of the inputs.
        takes_two_terms: whether :meth:`gradients` takes a gradient as two terms, ``dy`` and ``plus``.
        is_repeatable: whether :meth:`compute` depends on the inputs alone and changes nothing else.
    """

    name = ""
    image_inputs = ()
    filter_input = None
    takes_strided = False
    makes_images = True
    channels_first = False
    options = ()
    takes_two_terms = False
    is_repeatable = False

    def apply(self, inputs):
        """Computes output variables and grows the graph, as :meth:`chainer.FunctionNode.apply` does.

        Chainer's own method checks for ChainerX, for memory layouts and for each type of array again and again, and
        takes twice the time; it runs if there are hooks, or a debug mode is on.
        """
        config = chainer.config
        if chainer.get_function_hooks() or self._n_local_function_hooks or config.debug or config.schedule_func:
            return super().apply(inputs)
        variables = [x if isinstance(x, chainer.Variable) else self._variable_of(x, inputs) for x in inputs]
        arrays = tuple([x.raw_array for x in variables])
        kind = type(arrays[0])
        if any(type(array) is not kind for array in arrays):
            utils._check_arrays_forward_compatible(arrays, self.label)
        if config.type_check:
            self._check_data_type_forward(arrays)
        if kind is np.ndarray:
            outputs = self.forward(arrays)
        else:
            with chainer.using_device(chainer.backend.get_device_from_array(*arrays)):
                outputs = self.forward(arrays)
        needed = any(x.requires_grad for x in variables)
        results = tuple([_variable(y, needed) for y in outputs])
        self._output_count = len(outputs)
        # A frozen layer with only frozen layers before it would keep its arrays for a pass that never comes.
        if config.enable_backprop and (needed or not any(isinstance(x, chainer.Parameter) for x in variables)):
            self._join_graph(variables, outputs, results)
            if watching.now.watchers:
                watching.report(self, results)
        return results

    def run(self, *inputs):
        """Applies the node to images (N, C, H, W), and returns its only output."""
        self.channels_first = True
        return self.apply(inputs)[0]

    def _variable_of(self, x, inputs):
        if not isinstance(x, chainer.get_array_types()):
            index = next(index for index, each in enumerate(inputs) if each is x)
            checks.variable(self.name, self._argument(index, len(inputs)), x)
        return chainer.as_variable(x)

    def _join_graph(self, variables, outputs, results):
        self._input_layouts, self._output_layouts = (None,) * len(variables), (None,) * len(results)
        self.rank = max([x.rank for x in variables])
        for y in results:
            y.creator_node = self
        self.inputs = tuple([x.node for x in variables])
        self.outputs = tuple([weakref.ref(y.node) for y in results])
        for index in self._input_indexes_to_retain or ():
            variables[index].retain_data()
        if self._output_indexes_to_retain is not None:
            for index in self._output_indexes_to_retain:
                results[index].retain_data()
            self._retained_output_data = tuple([outputs[index] for index in self._output_indexes_to_retain])
        self.lazy_grad_sum = chainer.config.lazy_grad_sum

    @property
    def label(self):
        """The name of the function."""
        return self.name

    def _check_data_type_forward(self, in_data):
        # Chainer does not call this if chainer.config.type_check is off. Its own, which this replaces, would describe
        # all inputs for a language of type expressions first.
        key = type(self), self.options, self.channels_first, *[(x.shape, x.dtype) for x in in_data]
        if key in _checked:
            return
        images = self.image_inputs if self.channels_first else ()
        self.check(*[as_nhwc(x) if index in images else x for index, x in enumerate(in_data)])
        if len(_checked) >= _MOST_CHECKED:
            _checked.clear()
        _checked.add(key)

    def check(self, x):
        """Raises TypeError or ValueError, in one line, if arguments do not fit: here, if one is not in a storage dtype.

        This is called once for all inputs of the same shapes and dtypes, with the same :attr:`options`.

        Args:
            x: the input, in subclasses several; only shapes and dtypes may be read.
        """
        checks.dtype(self.name, "x", x)

    def forward(self, inputs):
        """Returns the outputs of :meth:`compute`.

        Raises:
            RuntimeError: a static graph of Chainer is being recorded. It repeats functions of variables, and would
                leave out :meth:`gradients`, which takes arrays.
        """
        if chainer.config.schedule_func is not None:
            raise RuntimeError(f"{self.name} of mixprec cannot be repeated by chainer.static_graph: remove it")
        if _backprop_utils.GradTable is not sums._GradTable:
            sums.install()
        arrays = [self._laid_out(index, x, announced=False) for index, x in enumerate(inputs)]
        outputs = self.compute(primitives_of(inputs[0]), *arrays)
        if self.channels_first and self.makes_images:
            return tuple(map(as_nchw, outputs))
        return outputs

    def _laid_out(self, index, array, announced=True):
        """Returns an input as :meth:`compute` gets it."""
        if array.ndim == 4 and (index == self.filter_input or (self.channels_first and index in self.image_inputs)):
            array = array.transpose(0, 2, 3, 1)
        if array.flags.c_contiguous or self.takes_strided:
            return array
        if array.ndim > 1 and not announced:  # copying a vector costs almost nothing
            name = self._argument(index) + (" in the order (K, R, S, C / groups)" if index == self.filter_input else "")
            announce(
                "%s: %s is not C-contiguous, and is copied in every step, at %s: results are right, and without the "
                "slice or transpose before it there would be no copy",
                *(self.name, name, place_of_call()),
            )
        return dense(array)

    def _argument(self, index, count=1):
        """Returns the name of one of ``count`` inputs."""
        names = [*inspect.signature(self.check).parameters]
        alike = len(names) == 1 and max(count - 1, index) > 0  # xs[0], xs[1]
        return f"{names[0]}[{index}]" if alike else names[index]

    def again(self):
        """Returns a node whose :meth:`forward` repeats this one's without side effects, or ``None``.

        :func:`mixprec.offload` recomputes arrays in this way instead of moving them.
        """
        return copy.copy(self) if self.is_repeatable else None

    def compute(self, primitives, *arrays):
        """Returns a tuple of output arrays.

        Args:
            primitives: :class:`~mixprec.backends.primitives.Primitives` of the device.
            arrays: the inputs, C-contiguous; images (N, H, W, C), filters (K, R, S, C / groups).
        """
        raise NotImplementedError

    def backward(self, target_input_indexes, grad_outputs):
        """Returns the variables of :meth:`gradients`.

        Raises:
            RuntimeError: the caller wants to differentiate the gradients again.
        """
        if chainer.config.enable_backprop:
            raise RuntimeError(
                "enable_double_backprop=True (of chainer.grad or backward) needs mixprec.convert(model, layout='nchw') "
                "in float16 or float32 (in YAML model.memory_format: nchw), and chainer.functions in place of "
                f"mixprec.functions: {self.name} of mixprec has no double backprop"
            )
        terms = [None if dy is None else self._gradient(dy) for dy in self.terms(*grad_outputs)]
        first = next(term for term in terms if term is not None)
        gradients = self.gradients(primitives_of(first), target_input_indexes, *terms)
        if self.channels_first:
            gradients = [
                as_nchw(each) if index in self.image_inputs and each is not None else each
                for index, each in enumerate(gradients)
            ]
        return tuple([each if each is None or type(each) is Pending else _variable(each, False) for each in gradients])

    def terms(self, *grad_outputs):
        """Returns the arrays for :meth:`gradients`, see :func:`terms_of`."""
        return terms_of(*grad_outputs)

    def _gradient(self, dy):
        """Returns the gradient of the output in the form that :meth:`gradients` takes."""
        if not (self.channels_first and self.makes_images and dy.ndim == 4):
            return dense(dy)
        gradient = as_nhwc(dy)
        if dy.flags.c_contiguous and not gradient.flags.c_contiguous:
            return primitives_of(dy).to_nhwc(dy, dy.dtype)
        return dense(gradient)  # the gradient of a part has gaps

    def gradients(self, primitives, indexes, dy):
        """Returns a gradient for each input, ``None`` where there is none, or where it is not requested.

        A gradient is an array, or from :mod:`mixprec.functions.pending`.

        Args:
            primitives: :class:`~mixprec.backends.primitives.Primitives` of the device.
            indexes: indices of the inputs whose gradients are requested.
            dy: gradient of the only output, C-contiguous. With :attr:`takes_two_terms` there may be another argument
                ``plus``, and the gradient is their sum. A node with several outputs gets the gradients of all, ``None``
                where there is none.
        """
        raise NotImplementedError

    def retained(self):
        """Returns the arrays of the inputs that were retained, as :meth:`compute` got them."""
        return [self._laid_out(index, self.inputs[index].data) for index in self._input_indexes_to_retain]

    def retained_output(self):
        """Returns the array of the only output, which was retained."""
        (output,) = self._retained_output_data
        return as_nhwc(output) if self.channels_first and self.makes_images else output


class Part(chainer.FunctionNode):
    """The part of a node after an intermediate result that turned out to be needed by itself; backward pass only.

    Args:
        node: the node, which has been applied.
        inputs: variable nodes.
        make: function of ``(node, inputs)``, which returns a node that computes the gradients from the arrays of the
            first one. These may be missing until the backward pass, for which :func:`mixprec.offload` restores them.
    """

    def __init__(self, node, inputs, make):
        self._node, self._make = node, make
        self.inputs, self.rank = inputs, max([x.rank for x in inputs])
        self.lazy_grad_sum = node.lazy_grad_sum
        if OFFLOADED in vars(node):
            vars(self)[OFFLOADED] = vars(node)[OFFLOADED]

    def backward(self, indexes, grad_outputs):
        return self._make(self._node, self.inputs).backward(indexes, grad_outputs)


def chainer_apply(node, inputs):
    """Applies a function node by Chainer's own method, without its replacement for converted models."""
    results = _apply(node, inputs)
    if watching.now.watchers and node.inputs is not None:
        watching.report(node, results)
    return results


def terms_of(dy, *others):
    """Returns the arrays of gradients, ``None`` where there is none; two of a :class:`~mixprec.functions.sums.Sum`."""
    first = dy.take() if type(dy) is sums.Sum else [dy]
    return [getattr(each, "array", each) for each in (*first, *others)]


def _variable(array, requires_grad):
    return chainer.Variable._init_unchecked(array, requires_grad=requires_grad, is_chainerx_array=False)


def as_nhwc(array):
    """Returns a view (N, H, W, C) of an array (N, C, H, W); arrays with another number of axes as they are."""
    return array.transpose(0, 2, 3, 1) if array.ndim == 4 else array


def as_nchw(array):
    """Returns a view (N, C, H, W) of an array (N, H, W, C); arrays with another number of axes as they are."""
    return array.transpose(0, 3, 1, 2) if array.ndim == 4 else array


def dense(array):
    """Returns an array C-contiguous, itself if it is."""
    if array.flags.c_contiguous:
        return array
    return chainer.backend.get_array_module(array).ascontiguousarray(array)

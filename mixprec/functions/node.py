"""What all function nodes here share: gradients of arrays, no double backprop, copies that are announced."""

import chainer

from mixprec.backends import primitives_of
from mixprec.backends.announcements import announce


class Node(chainer.FunctionNode):
    """A function of arrays whose gradient is one of arrays, too.

    A subclass has :meth:`check`, :meth:`compute` and :meth:`gradients`. Only what the latter asks for by
    :meth:`retained` outlives the forward pass, and nothing does under ``chainer.no_backprop_mode()``, as Chainer then
    lets go of the node.

    Attributes:
        name: of the function, for messages and as the label of the node in a graph.
    """

    name = ""

    @property
    def label(self):
        """The name of the function."""
        return self.name

    def check_type_forward(self, in_types):
        """Calls :meth:`check`; Chainer does not call this if ``chainer.config.type_check`` is off."""
        self.check(*in_types)

    def check(self, *arrays):
        """Raises TypeError or ValueError, in one line, if arguments do not fit.

        Args:
            arrays: the inputs; only shapes and dtypes are to be looked at.
        """

    def forward(self, inputs):
        """Returns the outputs of :meth:`compute`.

        Raises:
            RuntimeError: a static graph of Chainer is being recorded. It repeats functions of variables, and would
                leave out :meth:`gradients`, which is one of arrays.
        """
        if chainer.config.schedule_func is not None:
            raise RuntimeError(f"{self.name} of mixprec cannot be repeated by chainer.static_graph: do without it")
        return self.compute(primitives_of(inputs[0]), *map(_vector, inputs))

    def compute(self, primitives, *arrays):
        """Returns a tuple of output arrays.

        Args:
            primitives: :class:`~mixprec.backends.primitives.Primitives` of the device.
            arrays: the inputs.
        """
        raise NotImplementedError

    def backward(self, target_input_indexes, grad_outputs):
        """Returns the variables of :meth:`gradients`.

        Raises:
            RuntimeError: the caller wants to differentiate the gradients again.
        """
        if chainer.config.enable_backprop:
            raise RuntimeError(
                f"{self.name} of mixprec has no double backprop: call backward() without enable_double_backprop=True, "
                f"or use chainer.functions"
            )
        (dy,) = grad_outputs
        dy = dense(dy.array)
        gradients = self.gradients(primitives_of(dy), target_input_indexes, dy)
        return tuple(None if each is None else chainer.Variable(each, requires_grad=False) for each in gradients)

    def gradients(self, primitives, indexes, dy):
        """Returns a gradient for each input, ``None`` where there is none, or where nobody has asked for it.

        Args:
            primitives: :class:`~mixprec.backends.primitives.Primitives` of the device.
            indexes: of the inputs whose gradients are wanted.
            dy: gradient of the only output, C-contiguous.
        """
        raise NotImplementedError

    def retained(self):
        """Returns the arrays of the inputs that were retained."""
        return [_vector(variable.array) for variable in self.get_retained_inputs()]

    def dense(self, argument, array):
        """Returns an input C-contiguous; if that takes a copy, this is announced once."""
        if not array.flags.c_contiguous:
            announce("%s: %s is not C-contiguous, and is copied in every step", self.name, argument)
        return dense(array)


def _vector(array):
    """Returns an array of one axis C-contiguous, which costs next to nothing; others as they are."""
    return dense(array) if array.ndim == 1 else array


def dense(array):
    """Returns an array C-contiguous, itself if it is."""
    if array.flags.c_contiguous:
        return array
    return chainer.backend.get_array_module(array).ascontiguousarray(array)

"""Finds the layers of a model during the backward pass."""

import chainer
from chainer.functions.array.cast import Cast as ChainersCast

from mixprec.backends import primitives_of
from mixprec.base.announcements import announce
from mixprec.functions.layer_gradients import Observer, creator_of
from mixprec.functions.layout import Cast
from mixprec.kfac.layers import FilterLayer, ScaleLayer


class Collector(Observer):
    """Sums the second moments of each layer during backward passes; makes a :class:`Layer` at its first use.

    Args:
        largest: layers with a larger matrix are left out.

    Attributes:
        largest: layers with a larger matrix are left out.
        layers: dict from the name of a layer's first parameter to its :class:`~mixprec.kfac.layers.Layer`, in the order
            in which backward passes reached them.
        too_large: dict from the names of layers that are left out to the sizes of their matrices.
        has_new: whether layers were added since this was set to ``False``.
        passes: number of backward passes of the step.
    """

    def __init__(self, largest):
        self.largest = largest
        self._index = self._names = None
        self.layers, self.too_large = {}, {}
        self.has_new = False
        self._used = set()  # names of layers that the backward pass has reached
        self.passes = 0

    def begin(self):
        """Begins a step."""
        self.passes = 0
        for layer in self.layers.values():
            layer.begin()

    def begin_pass(self):
        """Must be called before each backward pass. If all gradients were cleared since the last one, sums restart."""
        if self.passes and self._are_cleared():
            self.begin()
        self.passes += 1
        self._used = set()

    def of(self, index):
        """Sets the parameters of a model, a :class:`~mixprec.optimizer.model_index.ModelIndex`."""
        self._index, self._walked, self._names = index, None, {}

    def check_found(self):
        """Checks, when there are gradients, that backward passes and layers of the step were seen.

        Raises:
            ValueError: no layer has been found yet.
        """
        if not self.passes:
            if not self.layers:
                raise ValueError(
                    "KFAC has seen no backward pass: call optimizer.update(lossfun, ...), or backward() of "
                    "optimizer.scale_loss(loss), of this optimizer"
                )
            announce("K-FAC has seen no backward pass in a step, and uses the second moments of earlier steps")
        if not self.layers:
            if self.too_large:
                rows = min(self.too_large.values())
                raise ValueError(f"KFAC: the smallest matrix of a layer has {rows} rows: raise largest")
            raise ValueError(
                "KFAC has found no layer that mixprec computes in NHWC: call mixprec.convert(model), or use "
                "mixprec.links"
            )

    def filters(self, inputs, x, dy, w_shape, convolution):
        """See :class:`~mixprec.functions.layer_gradients.Observer`."""
        params, names = self._parameters(inputs)
        if not names or names[0] is None or names[0] in self.too_large:
            return
        names = [name for name in names if name is not None]
        layer = self._known(names, params)
        if layer is None:
            size = max(FilterLayer.sizes(names, w_shape, convolution.groups))
            if size > self.largest:
                self.too_large[names[0]] = size
                return
            layer = self._new(FilterLayer(names, w_shape, convolution.groups, params[0].array))
        layer.to_device(params[0].device)
        if layer.names == names and layer.fits(w_shape, convolution.groups):
            layer.add(primitives_of(x), x, dy, convolution, is_first=self._is_first(layer))

    def scales(self, inputs, x, dy, arrays, saved, relu):
        """See :class:`~mixprec.functions.layer_gradients.Observer`."""
        params, names = self._parameters(inputs)
        if None in names:
            return
        layer = self._known(names, params)
        if layer is None:
            layer = self._new(ScaleLayer(names, x.shape[-1], params[0].array))
        layer.to_device(params[0].device)
        if layer.names == names:
            layer.add(primitives_of(x), x, dy, arrays, saved, relu, is_first=self._is_first(layer))

    def _are_cleared(self):
        """Whether no parameter of a layer has a gradient."""
        names = {name for layer in self.layers.values() for name in layer.names}
        return all(param.grad is None for name, param in self._index.namedparams if name in names)

    def _known(self, names, params):
        """Returns the layer of these parameters; drops a layer of other parameters that had the same names."""
        layer = self.layers.get(names[0])
        arrays = [param.array for param in params if param is not None]
        return None if layer is None or (layer.names == names and not layer.suits(arrays)) else layer

    def _is_first(self, layer):
        name = layer.names[0]
        is_first = name not in self._used
        self._used.add(name)
        return is_first

    def _new(self, layer):
        self.layers[layer.names[0]] = layer
        self.has_new = True
        return layer

    def _parameters(self, inputs):
        """Returns the parameters behind inputs of a node, and their names; ``None`` for other inputs."""
        if self._index.namedparams is not self._walked:
            self._walked = self._index.namedparams
            self._names = {id(param): name for name, param in reversed(self._walked)}
        params = list(map(_parameter, inputs))
        return params, [None if param is None else self._names.get(id(param)) for param in params]

    def __getstate__(self):
        return {**self.__dict__, "_index": None, "_walked": None, "_names": None}


def _parameter(node):
    """Returns the trained parameter of a variable node, perhaps behind a cast, or ``None``."""
    creator = creator_of(node)
    while isinstance(creator, (Cast, ChainersCast)):
        node = creator.inputs[0]
        creator = creator_of(node)
    param = node.get_variable_or_none() if creator is None else None
    return param if isinstance(param, chainer.Parameter) and param.requires_grad else None

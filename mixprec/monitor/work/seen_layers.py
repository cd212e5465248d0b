"""The outputs of a network's layers while it runs: of links that own parameters, and of ReLUs."""

import chainer
import numpy as np
from chainer.functions.activation.relu import ReLU


class SeenLayers:
    """Calls a function with the output of each layer, in the order in which they are computed.

    ``with SeenLayers(network, see): network(x)``.

    Args:
        network: ``chainer.Link``.
        see: called with the name of the layer, the name of its class, and its output, an array that stays as it is. The
            name is the path of the link, or ``"after conv1: ReLU"``; a layer that runs again has `` (2)`` behind it.
    """

    def __init__(self, network, see):
        own = {path.rpartition("/")[0] or "/" for path, _ in network.namedparams()}
        self._paths = {id(link): path for path, link in network.namedlinks() if path in own}
        self._see, self._seen, self._last = see, {}, "the input"
        self._hooks = _Links(self), _Functions(self)

    def __enter__(self):
        for hook in self._hooks:
            hook.__enter__()
        return self

    def __exit__(self, *error):
        for hook in reversed(self._hooks):
            hook.__exit__(*error)

    def link(self, link, output):
        """Takes the output of a link."""
        path = self._paths.get(id(link))
        if path is not None and isinstance(output, chainer.Variable):
            self._last = path.strip("/") or type(link).__name__
            self._tell(self._last, type(link).__name__, output.array)

    def relu(self, x):
        """Takes the input of a ReLU, whose outputs a hook does not get."""
        self._tell(f"after {self._last}: ReLU", "ReLU", np.maximum(x, 0))

    def _tell(self, name, kind, array):
        times = self._seen[name] = self._seen.get(name, 0) + 1
        self._see(name if times == 1 else f"{name} ({times})", kind, array)


class _Links(chainer.LinkHook):
    name = "mixprec.monitor links"

    def __init__(self, layers):
        self._layers = layers

    def forward_postprocess(self, args):
        self._layers.link(args.link, args.out)


class _Functions(chainer.FunctionHook):
    name = "mixprec.monitor functions"

    def __init__(self, layers):
        self._layers = layers

    def forward_postprocess(self, function, in_data):
        if isinstance(function, ReLU):
            self._layers.relu(in_data[0])

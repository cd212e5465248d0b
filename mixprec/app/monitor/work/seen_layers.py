"""The outputs of a network's layers while it runs: of links that own parameters, and of ReLUs."""

import chainer
import numpy as np
from chainer.functions.activation.relu import ReLU


class SeenLayers(chainer.LinkHook):
    """Calls a function with the output of each layer, in the order in which they are computed.

    ``with SeenLayers(network, see): network(x)``.

    Args:
        network: ``chainer.Link``.
        see: called with the name of the layer, the name of its class, and its output, an array that stays as it is. The
            name is the path of the link, or ``"after conv1: ReLU"``; a layer that runs again has the suffix `` (2)``.
    """

    name = "mixprec.app.monitor links"

    def __init__(self, network, see):
        own = {path.rpartition("/")[0] or "/" for path, _ in network.namedparams()}
        self._paths = {id(link): path for path, link in network.namedlinks() if path in own}
        self._see, self._seen, self._last = see, {}, "the input"
        self._relus = _ReLUs(self._tell_relu)

    def __enter__(self):
        super().__enter__()
        self._relus.__enter__()
        return self

    def __exit__(self, *error):
        self._relus.__exit__(*error)
        super().__exit__(*error)

    def forward_postprocess(self, args):
        path, kind = self._paths.get(id(args.link)), type(args.link).__name__
        if path is not None and isinstance(args.out, chainer.Variable):
            self._last = path.strip("/") or kind
            self._tell(self._last, kind, args.out.array)

    def _tell_relu(self, x):
        self._tell(f"after {self._last}: ReLU", "ReLU", np.maximum(x, 0))

    def _tell(self, name, kind, array):
        times = self._seen[name] = self._seen.get(name, 0) + 1
        self._see(name if times == 1 else f"{name} ({times})", kind, array)


class _ReLUs(chainer.FunctionHook):
    """Reports the input of each ReLU, whose outputs a hook does not get."""

    name = "mixprec.app.monitor functions"

    def __init__(self, tell):
        self._tell = tell

    def forward_postprocess(self, function, in_data):
        if isinstance(function, ReLU):
            self._tell(in_data[0])

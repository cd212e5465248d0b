"""The FP32 master weights of a model, in the shape of a Chainer link."""

import chainer
import numpy as np
from chainer import backend


class Masters(chainer.Link):
    """What the wrapped optimizer sees as its target: the model with every parameter in FP32.

    ``params`` and ``namedparams`` walk the live model, so that parameters that are initialized late, added after
    ``setup`` or shared need no bookkeeping. An FP16 parameter is replaced by its master, a separate FP32
    :class:`chainer.Parameter` with the same update rule; an FP32 parameter is its own master.

    Args:
        model: the user's model.
    """

    def __init__(self, model):
        super().__init__()
        self.model = model
        self._masters = {}  # id(parameter) -> (parameter, master); the parameter is held so that its id stays its own

    def of(self, param):
        """Returns the master of a parameter of the model."""
        if param.array is None or param.dtype != np.float16:
            return param
        held = self._masters.get(id(param))
        if held is None:
            master = chainer.Parameter(param.array.astype(np.float32), name=param.name)
            master.update_rule = param.update_rule
            self._masters[id(param)] = (param, master)
            return master
        master = held[1]
        if master.device != param.device:
            master.to_device(param.device)
        return master

    def params(self, include_uninit=True):
        """Yields the masters in the order of the model's ``params``."""
        for param in self.model.params(include_uninit):
            yield self.of(param)

    def namedparams(self, include_uninit=True):
        """Yields ``(name, master)`` with the names of the model's ``namedparams``."""
        for name, param in self.model.namedparams(include_uninit):
            yield name, self.of(param)

    def links(self, skipself=False):
        """Yields the links of the model."""
        return self.model.links(skipself)

    def namedlinks(self, skipself=False):
        """Yields the named links of the model."""
        return self.model.namedlinks(skipself)

    def share_update_rules(self):
        """Gives each parameter of the model the update rule of its master, for users who set hyperparameters there."""
        for param in self.model.params():
            param.update_rule = self.of(param).update_rule

    def gather_gradients(self, scaler):
        """Unscales the model's gradients into the masters, in FP32.

        Args:
            scaler: one of :mod:`mixprec.loss_scale`.

        Returns:
            bool: whether all gradients are finite. On a GPU this is the one value that is read from the device.
        """
        finite = []
        for param in self.model.params(include_uninit=False):
            master = self.of(param)
            if master is not param:
                _follow(param, master)
            if param.grad is None:
                master.cleargrad()
                continue
            if master is param:
                scaler.unscale(param.grad, out=param.grad)
            else:
                if master.grad is None:
                    master.grad = master.xp.empty_like(master.array)
                scaler.unscale(param.grad, out=master.grad)
            finite.append(master.xp.isfinite(master.grad).all())
        if not finite:
            return True
        xp = backend.get_array_module(finite[0])
        return bool(xp.stack(finite).all())

    def names_of_non_finite_gradients(self):
        """Returns the names of the parameters whose unscaled gradients are not all finite."""
        return [
            name
            for name, master in self.namedparams(include_uninit=False)
            if master.grad is not None and not bool(master.xp.isfinite(master.grad).all())
        ]

    def round_to_model(self):
        """Rounds the masters into the model's FP16 parameters, in place."""
        for param in self.model.params(include_uninit=False):
            master = self.of(param)
            if master is not param:
                param.array[...] = master.array

    def serialize_masters(self, serializer):
        """Saves or loads the masters of the FP16 parameters, under the names of the parameters."""
        for name, param in self.model.namedparams():
            master = self.of(param)
            if master is not param:
                loaded = serializer(name.lstrip("/"), master.array)
                if loaded is not master.array:
                    master.array[...] = master.device.send(loaded)
                # The model is loaded after its optimizer; until then its parameters are those of the masters.
                param.array[...] = master.array


def _follow(param, master):
    """Takes over what somebody wrote into an FP16 parameter since it was last rounded from its master."""
    written = param.array.view(np.int16) != master.array.astype(np.float16).view(np.int16)
    master.array[...] = master.xp.where(written, param.array.astype(np.float32), master.array)

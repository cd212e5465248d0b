"""The FP32 master weights of a model, in the shape of a Chainer link.

``setup`` makes :class:`Masters` and gives them to the wrapped optimizer as its target.
"""

import contextlib
import copy

import chainer
import numpy as np
from chainer import backend

from mixprec.backends.memory import in_order_of, same_order
from mixprec.backends.transfers import on_host
from mixprec.base.dtypes import is_half
from mixprec.optimizer.model_index import ModelIndex
from mixprec.optimizer.part_rates import Factors
from mixprec.precision.master_arrays import MASTER, OWNER, written
from mixprec.precision.weight_copies import narrow

_NO_LINKS = (
    "the target of a wrapped optimizer, as hooks see it, has FP32 masters in params() and namedparams(), no links"
)


class Masters(chainer.Link):
    """The target of the wrapped optimizer: the model with every parameter in FP32.

    ``params`` and ``namedparams`` walk the live model, so that parameters that are initialized late, added after
    ``setup`` or shared need no bookkeeping. In place of a parameter they yield its master, a separate
    :class:`chainer.Parameter` with the same update rule and a gradient of its own. The master of a parameter in FP16 or
    BF16 has an FP32 array of its own; any other parameter shares its array with its master.

    Args:
        model: the user's model.
        no_decay: :class:`~mixprec.optimizer.no_decay.NoDecay`: which parameters have no weight decay. The attribute
            ``no_decay`` of their masters is true.
        rates: factors on the learning rates of parts of the model, from :func:`mixprec.optimizer.part_rates.checked`.

    Attributes:
        factors: :class:`~mixprec.optimizer.part_rates.Factors` of the parameters of the model.
    """

    def __init__(self, model, no_decay, rates):
        super().__init__()
        self.model = model
        self.factors = Factors(model, rates)
        self._no_decay = no_decay
        self._excluded = no_decay.of(model)
        self.index = ModelIndex(model)
        self._masters = {}  # id(parameter) -> (parameter, master); the parameter is held so that its id stays its own
        self._fixed = None
        for param in model.params(include_uninit=False):
            _, array = param.__dict__.get(MASTER, (None, param.array))
            if array.shape != param.shape:
                delattr(param, MASTER)

    def __getstate__(self):
        # Attributes of a parameter are not copied or pickled with it.
        masters = [(param, master, master.no_decay) for param, master in self._masters.values()]
        state = {**self.__dict__, "_masters": masters}
        del state["index"]
        return state

    def __setstate__(self, state):
        self.__dict__.update(state)
        narrow(self.model.params())
        self.index = ModelIndex(self.model)
        self._masters = {id(param): (param, master) for param, master, _ in state["_masters"]}
        for param in self.model.params():
            setattr(param, OWNER, self)
            self.factors.set_gradient(param)
        for param, master, no_decay in state["_masters"]:
            master.no_decay = no_decay
            if is_half(param.dtype):
                setattr(param, MASTER, (id(param), master.array))

    def of(self, param):
        """Returns the master of a parameter of the model; an uninitialized parameter is its own master."""
        held = self._masters.get(id(param))
        if held is not None and self.in_step:
            return held[1]
        setattr(param, OWNER, self)
        if param.array is None:
            self.factors.set_gradient(param)
            self.factors.apply(param)
            return param
        array = _master_array(param)
        if held is None:
            master = chainer.Parameter(array, name=param.name)
            master.cleargrad()
            master.no_decay = self._excluded(param)
            self.factors.set_gradient(param)
            self._set_up_rule(param, master)
            self._masters[id(param)] = (param, master)
        else:
            master = held[1]
            if master.array is not array:
                master.to_device(param.device)
                master.array = array
        if master.update_rule is not param.update_rule:
            master.update_rule = param.update_rule
            self._set_up_rule(param, master)
        return master

    def all_current(self):
        """Returns ``[(name, parameter, master)]`` of all parameters, each master as :meth:`current` returns it."""
        return [(name, param, self.current(name, param)) for name, param, _ in self._all()]

    def current(self, name, param):
        """Returns the master of a parameter, updated with values that were written into the parameter."""
        master = self.of(param)
        if param.array is not None and not self.in_step:
            _follow(name, param, master)
        return master

    @contextlib.contextmanager
    def fixed(self, of=None):
        """Returns a context for a step: parameters, and values written into them, are collected once, at its beginning.

        Args:
            of: names of the parameters that the step updates: values written into them must reach their masters before
                it, and they must be rounded after it; ``None`` for all.
        """
        everything = self._all()
        updated = [each for each in everything if each[1].array is not None and (of is None or each[0] in of)]
        for name, param, master in updated:
            _follow(name, param, master)
        self._fixed = everything
        try:
            yield
        finally:
            _round_to_model(updated)
            self._fixed = None

    @property
    def in_step(self):
        """Whether a step is under way: the masters may be ahead of the parameters."""
        return self._fixed is not None

    def params(self, include_uninit=True):
        """Yields the masters in the order of the model's ``params``, a shared one as often as Chainer would."""
        for _, master in self.namedparams(include_uninit):
            yield master

    def namedparams(self, include_uninit=True):
        """Yields ``(name, master)`` with the names of the model's ``namedparams``."""
        for name, param, master in self._fixed or self._all():
            if include_uninit or param.array is not None:
                yield name, master

    @property
    def device(self):
        """The device of the model."""
        return self.model.device

    @property
    def xp(self):
        """The array module of the model."""
        return self.model.xp

    def _no_links(self, *args, **kwargs):
        raise AttributeError(_NO_LINKS)

    links = namedlinks = children = _no_links

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(f"{name}: {_NO_LINKS}")

    def pairs(self):
        """Yields ``(name, parameter, master)`` of every initialized parameter, a shared one once."""
        seen = set()
        for name, param, master in self._fixed or self._all():
            if param.array is not None and id(param) not in seen:
                seen.add(id(param))
                yield name, param, master

    def _all(self):
        self.index.refresh()
        everything = [(name, param, self.of(param)) for name, param in self.index.namedparams]
        if len(self._masters) > len(everything):  # the user has removed parameters
            present = {id(param) for _, param, _ in everything}
            self._masters = {key: held for key, held in self._masters.items() if key in present}
        return everything

    def share_update_rules(self):
        """Gives each parameter the update rule that the optimizer has given its master.

        From then on the parameter's rule is used, so that users can set its hyperparameters, or replace it.
        """
        for param, master in self._masters.values():
            param.update_rule = master.update_rule
            self._set_up_rule(param, master)

    def _set_up_rule(self, param, master):
        self.factors.apply(param)
        if master.no_decay and param.update_rule is not None:
            self._no_decay.apply(param.update_rule)

    def part(self, optimizer, names):
        """Returns a copy of ``optimizer`` whose target contains only the masters of these names."""
        part = copy.copy(optimizer)
        part.target = _Part(self, names)
        part._hookable = copy.copy(optimizer._hookable)
        part._hookable.optimizer = part
        return part

    def hold(self, param):
        """Whether ``param`` itself, and not a copy of it, is a parameter of this model."""
        held = self._masters.get(id(param))
        return held is not None and held[0] is param


class _Part:
    """Some of the masters, as a target of an optimizer, for the duration of a step."""

    def __init__(self, masters, names):
        self._masters = masters
        self._names = names

    params = Masters.params

    def namedparams(self, include_uninit=True):
        for name, master in self._masters.namedparams(include_uninit):
            if name in self._names:
                yield name, master

    def pairs(self):
        for name, param, master in self._masters.pairs():
            if name in self._names:
                yield name, param, master


def _master_array(param):
    """Returns the array of the master of ``param``, which belongs to the parameter, not to one of its optimizers.

    So a parameter keeps its FP32 bits when it gets a new optimizer, and several optimizers see each other's updates.
    """
    if not is_half(param.dtype):
        param.__dict__.pop(MASTER, None)
        return param.array
    owner, array = param.__dict__.get(MASTER, (None, None))
    if owner != id(param):  # none yet, or a copy has the array of its original
        array = param.array.astype(np.float32)
    elif backend.get_device_from_array(array) != param.device:
        array = param.device.send(array)
    # The parameter's array may have been replaced with another memory order; arrays sent to a GPU become C-contiguous.
    if array.shape == param.shape and not same_order(array, param.array):
        array = in_order_of(array, param.array)
    setattr(param, MASTER, (id(param), array))
    return array


def _round_to_model(updated):
    """Rounds masters into FP16 and BF16 parameters, in place, given ``[(name, parameter, master)]``."""
    with np.errstate(over="ignore"):  # above 65,504 FP16 has inf, which the next gradients show
        for _, param, master in updated:
            own = param.__dict__[MASTER][1] if is_half(param.dtype) else param.array
            if master.array is not own:  # a rule has replaced the array
                own[...] = master.array
                master.array = own
            if own is not param.array:
                param.array[...] = own


def _follow(name, param, master):
    """Updates a master with values written into its FP16 or BF16 parameter since that was last rounded from it."""
    if not is_half(param.dtype):
        return
    if master.array.shape != param.shape:
        raise ValueError(f"{name} has changed its shape from {master.array.shape} to {param.shape}: call setup() again")
    where = written(param.array, master.array)
    if on_host(where) and not where.any():
        return
    master.array[...] = master.xp.where(where, param.array.astype(np.float32), master.array)

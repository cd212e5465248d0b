"""The error message for training that has diverged: it says where numbers stopped being finite.

Called once, right before :class:`~mixprec.LossScaleExhausted` is raised.
"""

from collections.abc import Iterator

import chainer
import numpy as np

from mixprec.base.dtypes import BFLOAT16, is_half
from mixprec.base.messages import text_of
from mixprec.functions import watching
from mixprec.optimizer import gradients
from mixprec.precision.grad_scales import ZERO
from mixprec.precision.without_masters import CONVERSION

_WORST = 5
_ROUNDING = {"Cast", "ToNHWC"}  # functions that round the input of a layer


def describe(masters, statistics, lossfun, args, kwds, rank=None):
    """Describes which gradients are not finite, and the first layer or function that is not. Reads from the device.

    Args:
        masters: :class:`~mixprec.optimizer.masters.Masters`, which hold the gradients of the step.
        statistics: :class:`~mixprec.optimizer.running_statistics.RunningStatistics`, which the second forward pass must
            not change.
        lossfun: the loss function of the step, called once more; ``None`` in a loop that calls ``backward`` itself.
        args: its arguments.
        kwds: its keyword arguments.
        rank: rank of this process if gradients are averaged over several, each with its own batch; else ``None``.

    Returns:
        str: part of a one-line message.
    """
    where, elsewhere = ("", "") if rank is None else (f"on rank {rank}: ", ", or on another rank")
    found = _first_layer(masters.model, statistics, lossfun, args, kwds)
    found = found or f"every activation is finite, so that the overflow is in the backward pass{elsewhere}"
    return f"{_gradients(masters)}; {where}{found}"


def _gradients(masters):
    found = ((name, _Count.of(array)) for name, array in gradients.unscaled(masters))
    counts = [(name, count) for name, count in found if count.bad]
    counts.sort(key=lambda item: -item[1].bad)  # stable: ties keep the order of the model
    if not counts and any(param._loss_scale is ZERO for param in masters.model.params()):
        return "gradients have been set to zero already (zero_gradients=True)"
    texts = [f"{name} ({count})" for name, count in counts[:_WORST]]
    if len(counts) > _WORST:
        texts.append(f"and {len(counts) - _WORST} more")
    return "gradients that are not finite, the worst first: " + (", ".join(texts) or "none")


def _first_layer(model, statistics, lossfun, args, kwds):
    if lossfun is None:
        return "update(lossfun, ...) in place of your own backward() would name the first layer that is not finite"
    for value in (*args, *kwds.values()):
        if (count := _Count.of_all(value)).bad:
            return f"the batch itself holds {count}"
    hook = _FirstNotFinite()
    try:
        with statistics.kept(), np.errstate(over="ignore", invalid="ignore"), hook, watching.watch(hook.made):
            losses = lossfun(*args, **kwds)
            for _ in losses if isinstance(losses, Iterator) else ():
                if hook.link is not None:
                    break
    except Exception as error:  # the loss function may fail or differ when it is called again
        return f"a second look at the batch failed ({type(error).__name__}: {' '.join(text_of(error).split())})"
    return None if hook.link is None else _described(hook, model)


def _described(hook, model):
    link = hook.link
    names = {id(each): name for name, each in model.namedlinks()}
    name = names.get(id(link), link.name or "a link outside of the model")
    bad = [f"{name}{path}" for path, param in link.namedparams(False) if _Count.of(param.array).bad]
    cause = f"; its parameters {', '.join(bad)} are not finite" if bad else ""
    what = f"{type(link).__name__}, {hook.count}"
    if hook.function is None:
        if hook.rounded is not None and not cause:
            cause = f"; its input does not fit into {hook.rounded}: divide before it{_kept(link)}"
        return f"first layer whose activation is not finite: {name} ({what}){cause}"
    if is_half(hook.dtype) and hook.count.inf and not cause:
        cause = f"; in {hook.dtype.name} it overflows: divide its inputs{_kept(link)}"
    return f"first function whose result is not finite: {hook.function} in {name} ({what}){cause}"


def _kept(link):
    state = link.__dict__.get(CONVERSION)
    way = "compute it in float32" if state is None else f'mixprec.convert(model, keep_float32=("{state.name}",))'
    return f", or {way}"


class _FirstNotFinite(chainer.LinkHook):
    """Checks the results of links and, by :meth:`made`, of the functions that links call between other links.

    Attributes:
        link: the first link whose result is not finite, or that calls the first such function; ``None`` if there is
            none.
        function: name of the function, ``None`` if it is the link's own.
        count: :class:`_Count` of the result.
        dtype: dtype of the function's result.
        rounded: name of the dtype to which the link has rounded an input that does not fit, or ``None``.
    """

    name = "mixprec.FirstNotFinite"

    def __init__(self):
        self.link = self.function = self.count = self.dtype = self.rounded = None
        self._under_way = []

    def forward_preprocess(self, args):
        self._under_way.append(args.link)
        if self.link is None:
            self.rounded = None

    def forward_postprocess(self, args):
        self._under_way.pop()
        if self.link is None and (count := _Count.of_all(args.out)).bad:
            self.link, self.count = args.link, count

    def made(self, node, results):
        """Checks the results of a function that was added to the graph."""
        if self.link is not None or not self._under_way or not (count := _Count.of_all(results)).bad:
            return
        link, function = self._under_way[-1], getattr(node, "function", node)
        if isinstance(link, (chainer.Chain, chainer.ChainList)):
            self.link, self.function, self.count = link, type(function).__name__, count
            self.dtype = results[0].dtype
        elif type(node).__name__ in _ROUNDING and is_half(results[0].dtype):
            self.rounded = results[0].dtype.name


class _Count:
    """Numbers of inf and of NaN among ``size`` values."""

    def __init__(self, inf=0, nan=0, size=0):
        self.inf, self.nan, self.size = inf, nan, size

    @property
    def bad(self):
        return self.inf + self.nan

    def __str__(self):
        return f"{self.inf} inf, {self.nan} NaN of {self.size}"

    @classmethod
    def of(cls, array):
        xp = chainer.backend.get_array_module(array)
        return cls(int(xp.isinf(array).sum()), int(xp.isnan(array).sum()), array.size)

    @classmethod
    def of_all(cls, value):
        """Counts in every floating array or variable of a (possibly nested) value."""
        if isinstance(value, chainer.Variable):
            value = value.array
        if isinstance(value, chainer.get_array_types()):
            floating = np.issubdtype(value.dtype, np.floating) or value.dtype == BFLOAT16
            return cls.of(value) if floating else cls()
        items = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
        parts = [cls.of_all(item) for item in items]
        return cls(*(sum(getattr(part, name) for part in parts) for name in ("inf", "nan", "size")))

"""``mixprec.convert``: the cast of a model to mixed precision, in place."""

import functools

import chainer
import chainer.links as L
from chainer import initializers

from mixprec.functions import casting, widening
from mixprec.policy import Policy
from mixprec.rewrite.report import LinkReport, Report

# Links whose parameters are multiplied with activations. All others keep float32 parameters: normalizations because
# their statistics need it, unknown links because nothing is known about them; both still work on float16 activations.
_COMPUTE_LINKS = (
    L.Bilinear,
    L.Convolution2D,
    L.ConvolutionND,
    L.Deconvolution2D,
    L.DeconvolutionND,
    L.DepthwiseConvolution2D,
    L.DilatedConvolution2D,
    L.EmbedID,
    L.Linear,
    L.LocalConvolution2D,
)

_POLICY = "_mixprec_policy"


def convert(model, *, compute="float16"):
    """Makes ``model`` compute in mixed precision, in place.

    Weights of convolution, deconvolution, linear and embedding links become ``compute``; all other parameters and every
    running statistic stay float32. While the model (or any part of it) runs forward, inputs are cast once, losses and
    normalizations are computed in float32 (:mod:`mixprec.functions.casting`), and float16 results leave it as float32.
    Names of parameters, arrays' layouts and the model's class do not change. Converting again changes nothing, and
    converting with another ``compute`` casts back. A model that is unpickled in another process has to be converted
    there once more.

    Args:
        model: any :class:`chainer.Link`; parameters may be uninitialized.
        compute: dtype name of activations and weights, ``"float16"`` or ``"float32"``.

    Returns:
        Report: what was done to each link; ``print`` it.

    Raises:
        TypeError: ``model`` is not a link.
        ValueError: ``compute`` is not one of the two.
    """
    if not isinstance(model, chainer.Link):
        raise TypeError(f"model must be a chainer.Link; found {type(model).__name__}")
    policy = Policy(compute)
    casting.install()
    widening.install()
    links = []
    for name, link in model.namedlinks():
        own = [link.__dict__[attribute] for attribute in sorted(link._params)]
        before = _dtype_names(own)
        if isinstance(link, _COMPUTE_LINKS):
            dtype, reason = policy.compute, "multiplied with activations"
        else:
            dtype, reason = "float32", "statistics, or a link that mixprec does not know"
        for param in own:
            _cast_parameter(param, dtype)
        setattr(link, _POLICY, policy)
        _scope_calls_of(type(link))
        if own:
            size = sum(param.size for param in own if param.array is not None)
            links.append(LinkReport(name, type(link).__name__, before, _dtype_names(own), reason, size))
    return Report.of(policy.compute, links, model.params())


def _dtype_names(params):
    return ", ".join(sorted({_dtype_name(param) for param in params}))


def _dtype_name(param):
    if param.array is None and getattr(param.initializer, "dtype", None) is None:
        return chainer.get_dtype(None, map_mixed16="float32").name
    return param.dtype.name


def _cast_parameter(param, dtype):
    if _dtype_name(param) not in ("float16", "float32") or _dtype_name(param) == dtype:
        return
    param.cleargrad()
    if param.array is not None:
        param.array = param.array.astype(dtype)
    else:
        param.initializer = _RoundedInitializer(param.initializer, dtype)


class _RoundedInitializer(chainer.initializer.Initializer):
    """Draws the values that an uninitialized parameter would have had, and rounds them to ``dtype``."""

    def __init__(self, initializer, dtype):
        super().__init__(dtype)
        self._initializer = initializer

    def __call__(self, array):
        device = chainer.backend.get_device_from_array(array)
        array[...] = initializers.generate_array(self._initializer, array.shape, device.xp, device=device)


def _scope_calls_of(cls):
    """Makes a call of a converted link of this class run under its policy.

    The ``__call__`` that the class inherits, usually :meth:`chainer.Link.__call__`, is wrapped where it is defined:
    replacing the class of each link instead would change what users see of their model and what pickle finds.
    """
    owner = next(base for base in cls.__mro__ if "__call__" in base.__dict__)
    original = owner.__dict__["__call__"]
    if hasattr(original, "runs_in_scope"):
        return

    @functools.wraps(original)
    def call(self, *args, **kwargs):
        policy = self.__dict__.get(_POLICY)
        if policy is None or casting.current() is not None:
            return original(self, *args, **kwargs)
        with casting.scope(policy):
            return _to_float32(original(self, *args, **kwargs))

    call.runs_in_scope = True
    owner.__call__ = call


def _to_float32(result):
    """Casts the float16 variables in a (possibly nested) result of a model to float32."""
    if type(result) in (tuple, list):
        return type(result)(_to_float32(item) for item in result)
    if isinstance(result, dict):
        return {key: _to_float32(item) for key, item in result.items()}
    if isinstance(result, chainer.Variable):
        return casting.cast(result, "float32")
    return result

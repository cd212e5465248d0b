"""``mixprec.convert`` and ``mixprec.revert``: a model for mixed precision, in place, and back.

Users call both before training. The other modules, from :mod:`mixprec.rewrite.replacements` on, hold everything that
a converted model does differently while it runs.
"""

from collections.abc import Sequence
from typing import Any, Literal

import chainer
from numpy.typing import DTypeLike

from mixprec.base import arguments
from mixprec.base.announcements import announce
from mixprec.base.scoped import scoped
from mixprec.precision import weight_copies
from mixprec.precision.conversion_state import set_state, state_of
from mixprec.precision.policy import Policy
from mixprec.rewrite import float32_links, parameters
from mixprec.rewrite.conversion_report import Report, dtype_names
from mixprec.rewrite.example import call_on_example, check_example, describe, explain, fault, without_trace
from mixprec.rewrite.replacements import install
from mixprec.rewrite.trace import refuse


class Conversion:
    """One call of :func:`mixprec.convert`.

    Args:
        policy: :class:`~mixprec.precision.policy.Policy`.
        strict: whether a traced call raises if a function stayed as it was.

    Attributes:
        on_example: whether ``convert`` is calling the model on its example; then a second computation is not reported.
        traced: number of calls in training mode that have been traced, see :mod:`mixprec.rewrite.trace`.
        lost_weights: list of texts, one for each parameter whose values, or small steps, 16 bits cannot hold.
        findings: :class:`~mixprec.rewrite.trace.Findings` of the last traced call, or ``None``.
    """

    def __init__(self, policy, strict=False):
        self.policy = policy
        self.strict = strict
        self.on_example = False
        self.traced = 0
        self.lost_weights = []
        self.findings = None


class LinkState:
    """One converted link.

    Args:
        conversion: :class:`Conversion`.
        name: path of the link in the model, ``/layer1/0/conv1``.
        kind: class of the link.
        before: ``{name: (dtype name, initializer)}`` of its own parameters, and of statistics in float16, before any
            conversion.
        keeps_float32: whether it stays in float32, with all that runs in a call of it.

    Attributes:
        normalization_sites: :class:`~mixprec.rewrite.fusions.NormalizationSite` by ``(chainer.config.train, turn)``;
            ``turn`` counts the batch normalizations that the link itself applies during one call of the model.
        convolution_sites: :class:`~mixprec.rewrite.fusions.ConvolutionSite`, by the same keys.
    """

    def __init__(self, conversion, name, kind, before, keeps_float32=False):
        self.conversion = conversion
        self.name = name
        self.kind = kind
        self.before = before
        self.keeps_float32 = keeps_float32
        self.normalization_sites = {}
        self.convolution_sites = {}

    def __setstate__(self, state):
        # A model that is unpickled in another process computes there as it did here.
        self.__dict__.update(state)
        install(self.kind)


def convert(
    model: chainer.Link,
    example: Any = None,
    *,
    compute: DTypeLike = "float16",
    layout: Literal["nhwc", "nchw", "channels_last", "channels_first", "contiguous"] = "nhwc",
    fuse: bool | None = None,
    conv_statistics: bool | None = None,
    keep_float32: Sequence[str | type[chainer.Link]] = (),
    strict: bool = False,
) -> Report:
    """Makes ``model`` compute in mixed precision, in NHWC and with fused batch normalizations, in place.

    Weights of convolution, deconvolution, linear and embedding links become ``compute``; all other parameters and every
    running statistic stay float32. While the model (or any part of it) runs forward, inputs are cast once, losses and
    normalizations are computed in float32, images lie in memory as (N, H, W, C) while their shape stays (N, C, H, W),
    and a ReLU, or an addition and a ReLU, is computed together with the batch normalization before it. Results leave
    the model in float32, in the order of their axes. ``docs/convert.md`` explains the details.

    Names of parameters, the model's class, and what a snapshot contains do not change. Converting again changes
    nothing; with other arguments it applies these. Links of :mod:`mixprec.links` are left as they are.

    Example:
        >>> import chainer
        >>> import chainer.functions as F
        >>> import chainer.links as L
        >>> import numpy as np
        >>> import mixprec
        >>> trunk = L.Convolution2D(3, 8, 3, nobias=True), L.BatchNormalization(8), F.relu
        >>> model = chainer.Sequential(*trunk, L.Linear(None, 10))
        >>> x = np.ones((2, 3, 8, 8), np.float32)
        >>> report = mixprec.convert(model, example=x)  # print(report) shows a table
        >>> model[0].W.dtype.name, model[1].gamma.dtype.name, model(x).dtype.name
        ('float16', 'float32', 'float32')
        >>> report.fused["ReLU"], report.fused[""]
        (1, 0)

    Args:
        model: any :class:`chainer.Link`; parameters may be uninitialized.
        example: input that the model is called on three times, to trace its functions. Its statistics, its attributes
            and NumPy's random numbers are restored. An array or variable, a list of them (one argument), a tuple of
            positional arguments, or a dict of keyword arguments, on the device of the model. For a classifier, a
            single array goes to its predictor. ``None``: the first calls in training are traced instead.
        compute: dtype of activations and weights, ``"float16"``, ``"bfloat16"`` or ``"float32"``, in short ``"fp16"``,
            ``"bf16"`` or ``"fp32"``, or an equivalent of NumPy, such as ``np.float16``.
        layout: ``"nhwc"``, or ``"nchw"`` for Chainer's own functions, which can be differentiated twice but do not
            support bfloat16. ``"channels_last"`` and ``"contiguous"`` mean the same.
        fuse: whether batch normalizations are fused; only with ``"nhwc"``. ``None`` is True there, and else False.
        conv_statistics: whether a device may take the sums of a batch normalization inside the convolution before it;
            only with ``"nhwc"``. It does where that is faster by rule or by measurement (docs/primitives.md), and the
            variance is then the difference of two float32 sums: exact enough while the standard deviation of a channel
            is not far below its mean. ``None`` means the value of ``fuse``.
        keep_float32: links that stay in float32, with all links below them and all functions that they call: a tuple of
            patterns for names of links, as for :func:`fnmatch.fnmatchcase` (``*`` matches slashes, too), and of
            classes of links, such as ``("/out", "/head/*", L.Linear)``. Inputs of such a link are cast to float32,
            and its result stays in float32.
        strict: whether anything that stays as it was is an error: at once with an example, otherwise at the end of the
            first call in training.

    Returns:
        Report: what was done to each link, as a table for ``print``.

    Raises:
        TypeError: ``model`` is not a link, ``example`` is not a valid example, ``keep_float32`` is not a tuple of
            patterns and classes, or ``fuse``, ``conv_statistics`` or ``strict`` is not a bool.
        ValueError: another argument has none of the values above, ``keep_float32`` matches no link, the example lies on
            another device, or something stayed as it was with ``strict``. The model is then unchanged. It is also
            unchanged after an exception of its own, which is passed on.
    """
    arguments.instance("model", model, chainer.Link, "a chainer.Link")
    conversion = Conversion(Policy(compute, layout, fuse, conv_statistics), arguments.flag("strict", strict))
    kept = float32_links.select(model, float32_links.check(keep_float32))
    if example is not None:
        check_example(model, example)
    for link_class in dict.fromkeys(type(link) for link in model.links()):
        install(link_class)
    backup = _Backup(model)
    try:
        report = _convert_links(model, conversion, kept)
        if strict:
            refuse(report.unknown_links)
        if example is not None:
            _try_out(model, conversion, example)
    except BaseException:
        backup.restore()
        raise
    for each in report.too_narrow:
        announce("mixprec.convert: %s", each)
    return report


def revert(model: chainer.Link) -> None:
    """Makes a converted model a plain one again, in place: dtypes, memory order, and how it computes.

    Weights that were rounded stay rounded, unless a :class:`~mixprec.MixedPrecisionOptimizer` has their float32
    masters. A copy of a converted model has float32 weights already.

    Example:
        >>> import chainer.links as L
        >>> import mixprec
        >>> model = L.Linear(4, 2)
        >>> report = mixprec.convert(model)
        >>> mixprec.revert(model)
        >>> model.W.dtype.name
        'float32'

    Args:
        model: any :class:`chainer.Link`; links that are not converted stay unchanged.

    Raises:
        TypeError: ``model`` is not a link.
    """
    arguments.instance("model", model, chainer.Link, "a chainer.Link")
    for link in model.links():
        state = state_of(link)
        if state is not None:
            parameters.revert(link, state.before)
            set_state(link, None)


def _convert_links(model, conversion, kept):
    rows, done = [], set()
    in_float32 = {id(param) for link in model.links() if id(link) in kept for param in parameters.own(link).values()}
    bytes_before = parameters.nbytes(model.links())
    plain, layers = _plain(model), parameters.layers(model)
    for name, link in model.namedlinks():
        if id(link) in done:  # registered twice in the model
            continue
        done.add(id(link))
        before = dtype_names(link)
        if float32_links.is_ours(link):
            state, why = None, "a link of mixprec"
        else:
            keeps = id(link) in kept
            state = LinkState(conversion, name, type(link), _before(link, plain), keeps)
            dtype, why = parameters.dtype_of(link, conversion.policy.compute, id(link) in layers)
            dtype, why = ("float32", "keep_float32") if keeps else (dtype, why)
            conversion.lost_weights += parameters.convert(link, dtype, state, in_float32)
            set_state(link, state)
        if link._params:
            rows.append((name, link, state, before, why))
    conversion.lost_weights += parameters.twins(model)
    return Report(conversion, rows, bytes_before)


def _plain(model):
    """Returns ``{id: (dtype name, initializer)}`` of the parameters before any conversion; links may share them."""
    found = {}
    for link in model.links():
        earlier = state_of(link)
        for name, param in parameters.own(link).items():
            if earlier is not None and name in earlier.before:
                found[id(param)] = earlier.before[name]
            else:
                found.setdefault(id(param), (parameters.dtype_name(param), param.initializer))
    return found


def _before(link, plain):
    earlier = state_of(link)
    found = {name: plain[id(param)] for name, param in parameters.own(link).items()}
    return found | parameters.half_statistics(link) | ({} if earlier is None else earlier.before)


def _try_out(model, conversion, example):
    """Calls the model twice: the first call shows what follows each normalization, and the report shows the second."""
    with without_trace(model), scoped(conversion, on_example=True):
        try:
            for train in (True, True, False):
                call_on_example(model, example, train=train)
        except Exception as error:
            why = fault(error)
            note = f"while mixprec.convert called {type(model).__name__} on example {describe(example)}"
            explain(error, note + (why and f": {why}"))
            raise


class _Backup:
    """All that a conversion changes in a model, so that one that fails changes nothing."""

    def __init__(self, model):
        self._links = [(link, dict(link.__dict__)) for link in model.links()]
        self._params = [
            (param, param.array, param.grad_var, param.initializer, weight_copies.computes_in(param))
            for param in model.params()
        ]

    def restore(self):
        for link, attributes in self._links:
            link.__dict__.clear()
            link.__dict__.update(attributes)
        for param, array, gradient, initializer, compute in self._params:
            if param.array is not array:
                param.array = array
                param.grad_var = gradient
            param.initializer = initializer
            weight_copies.compute_in(param, compute)

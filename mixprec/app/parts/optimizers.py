"""Builds the optimizer of a config.

The training command calls :func:`build_optimizer` before the conversion of the model, so that masters start from
unrounded weights.
"""

import dataclasses
import importlib

from chainer import optimizers
from chainer.optimizer_hooks import GradientClipping, WeightDecay

from mixprec.app.config import ConfigError
from mixprec.base.name_patterns import UnknownName, no_match
from mixprec.base.optimizer_names import DECAYS, FIXED, OWN, RATES, WITH_KEY
from mixprec.kfac.preconditioner import KFAC
from mixprec.optimizer import MixedPrecisionOptimizer
from mixprec.optimizer.part_rates import Factors, NothingToTrain, factors_of
from mixprec.precision.fixed_scales import NoLossScale, StaticLossScale
from mixprec.precision.loss_scale import DynamicLossScale

NETWORK = "/predictor"  # prefix, in the classifier, of the names in model.npz, to which patterns apply


def build_optimizer(config, model, communicator=None):
    """Returns the :class:`~mixprec.MixedPrecisionOptimizer` that the config describes, set up on ``model``.

    Args:
        config: :class:`mixprec.app.config.Config`.
        model: :class:`~mixprec.app.parts.model.ImageClassifier`, which fits :func:`check_parts`.
        communicator: a ChainerMN communicator, with which all processes build their optimizers at the same time; or
            ``None``.
    """
    settings = config.optimizer
    inner = _inner(settings)
    optimizer = MixedPrecisionOptimizer(
        inner,
        _loss_scale(config.loss_scale),
        batched=config.update.fused,
        preconditioner=_preconditioner(config),
        no_decay=None if settings.decay_norm_and_bias else "ndim <= 1",
        communicator=communicator,
        allreduce_dtype=None if communicator is None else config.precision.allreduce,
        rates=_rates(settings),
    ).setup(model)
    if settings.clip_norm is not None:
        optimizer.add_hook(GradientClipping(settings.clip_norm))
    if settings.weight_decay > 0 and settings.name not in DECAYS:  # otherwise it is in the formula
        optimizer.add_hook(WeightDecay(settings.weight_decay))
    return optimizer


def _inner(settings):
    """Returns the optimizer of Chainer or of this package that a config names."""
    name = settings.name
    keywords = {attribute(name): settings.lr, **FIXED.get(name, {})}
    for key, names in WITH_KEY.items():
        if name in names and getattr(settings, key) is not None:
            keywords[key] = getattr(settings, key)
    if name in DECAYS:
        keywords[DECAYS[name]] = settings.weight_decay
    return getattr(importlib.import_module(OWN[name]) if name in OWN else optimizers, name)(**keywords)


def described_parts(optimizer):
    """Returns a description of frozen parts and parts with a different rate; ``None`` if there are none."""
    factors, lines = {}, []
    once = {id(param): (param, factor) for param, factor in factors_of(optimizer).values()}
    for param, factor in once.values():
        factors.setdefault(factor, []).append(param)
    for factor, params in sorted(factors.items()):
        if factor == 1:
            continue
        what = "frozen" if factor == 0 else f"with {factor:g} times the learning rate"
        elements = sum(param.size for param in params if param.array is not None)
        lines.append(f"{len(params)} parameters ({elements:,} elements) {what}")
    return ", ".join(lines) or None


def described_preconditioner(optimizer):
    """Returns a description of the preconditioner; ``None`` without one."""
    if optimizer.preconditioner is None:
        return None
    settings = optimizer.preconditioner.settings
    every = f"matrices every {settings['factor_every']}, inverses every {settings['inverse_every']} steps"
    return f"K-FAC, damping {settings['damping']:g}, {every}"


def _rates(settings):
    """Returns the factors by pattern; the last match counts, and frozen parts come last."""
    rates = dict(settings.rates)
    for pattern in settings.freeze:
        rates.pop(pattern, None)
        rates[pattern] = 0.0
    return {f"{NETWORK}{pattern}": factor for pattern, factor in rates.items()}


def check_parts(settings, model):
    """Checks the patterns of a config for parts of a network.

    Args:
        settings: :class:`mixprec.app.config.arithmetic.Optimizer`.
        model: :class:`~mixprec.app.parts.model.ImageClassifier` around the network.

    Raises:
        ConfigError: a pattern of ``optimizer.rates`` or ``optimizer.freeze`` fits no parameter, or nothing is trained.
    """
    try:
        Factors(model, _rates(settings))
    except UnknownName as error:
        key = "freeze" if error.pattern.removeprefix(NETWORK) in settings.freeze else "rates"
        raise unknown(f"optimizer.{key}", error) from error
    except NothingToTrain as error:
        raise ConfigError("'optimizer.freeze' and 'optimizer.rates' freeze all parameters") from error


def unknown(key, error):
    """Returns the ConfigError for an :class:`~mixprec.base.name_patterns.UnknownName` from a key of the config."""
    pattern = error.pattern.removeprefix(NETWORK)
    names = [name.removeprefix(NETWORK) for name in error.names if name.startswith(f"{NETWORK}/")]
    return ConfigError(f"'{key}' has {pattern!r}, which {no_match(error.what, pattern, names or ['/'])}")


def _preconditioner(config):
    if config.optimizer.preconditioner == "none":
        return None
    settings = dataclasses.asdict(config.kfac)
    del settings["end_damping"]  # the schedule goes there
    return KFAC(decay=settings.pop("ema_decay"), **settings)


def attribute(optimizer_name):
    """Returns the name of an optimizer's learning rate."""
    return RATES.get(optimizer_name, "lr")


def _loss_scale(settings):
    if settings.mode == "none":
        return NoLossScale(settings.patience)
    if settings.mode == "static":
        return StaticLossScale(settings.init_scale, settings.patience)
    return DynamicLossScale(
        init=settings.init_scale,
        growth=settings.growth_factor,
        backoff=settings.backoff_factor,
        interval=settings.growth_interval,
        floor=settings.min_scale,
        cap=settings.max_scale,
        hysteresis=settings.hysteresis,
        patience=settings.patience,
        search=settings.search,
    )

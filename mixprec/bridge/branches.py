"""Chainer's branches for functions that the bridge does not have: recurrent layers, and spatial samplers."""

import functools
import logging

from mixprec.bridge import placing
from mixprec.compat.hooks import after_import
from mixprec.compat.rebind import overlaid
from mixprec.compat.registry import LEAVE

_RNN = "chainer.functions.rnn"
_SPATIAL = "chainer.functions.array.spatial_transformer"

_logger = logging.getLogger("mixprec")


@after_import(
    f"{_RNN}.n_step_rnn:n_step_rnn_base", f"{_RNN}.n_step_lstm:n_step_lstm_base", f"{_RNN}.n_step_gru:n_step_gru_base"
)
def rnn(function):
    """Without it ``F.n_step_rnn``, ``n_step_lstm`` and ``n_step_gru`` call functions that the bridge lacks.

    Where they would, each layer and direction is one node of mixprec, which no more than cuDNN's can be differentiated
    twice.
    """
    chainers_own = _on_its_own(function, "RNN")
    if chainers_own is LEAVE:
        return LEAVE

    @functools.wraps(function)
    def run(*args, **kwargs):
        import chainer  # this is called while Chainer is imported

        from mixprec.functions import n_step

        call = n_step.Call(function, args, kwargs)
        on_gpu = chainer.backend.get_array_module(call.states[0]) is chainer.backends.cuda.cupy
        if on_gpu and chainer.should_use_cudnn(">=auto", 5000) and call.fits():
            return call.run(call.states, call.ws, call.bs, call.xs)
        return chainers_own(*args, **kwargs)

    return run


@after_import(
    f"{_SPATIAL}_grid:SpatialTransformerGrid.{{forward,backward}}_gpu",
    f"{_SPATIAL}_sampler:SpatialTransformerSampler.{{forward,backward}}_gpu",
)
def spatial_transformer(method):
    """Without it the two functions of the spatial transformer call functions that the bridge lacks."""
    return _on_its_own(method, "spatial transformer")


def _on_its_own(function, what):
    """Returns a copy for which ``chainer.should_use_cudnn`` is False, whatever the configuration."""
    if not placing.is_bridged():
        return LEAVE
    chainer = function.__globals__["chainer"]

    def should_use_cudnn(level, lowest_version=0):
        if chainer.should_use_cudnn(level, lowest_version):
            _say(what)
        return False

    return overlaid(function, "chainer", should_use_cudnn=should_use_cudnn)


@functools.cache
def _say(what):
    _logger.warning("cuDNN's %s is not bridged: Chainer's own path", what)

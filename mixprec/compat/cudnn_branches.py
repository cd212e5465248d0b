"""Chainer's branches that stay without cuDNN where the bridge stands in for CuPy's: it has no RNN and no sampler."""

import functools
import logging

from mixprec.compat import cudnn, hooks
from mixprec.compat.rebind import Overlay, rebound

_logger = logging.getLogger("mixprec")


@hooks.after_import(
    "chainer.functions.rnn.n_step_rnn", "chainer.functions.rnn.n_step_lstm", "chainer.functions.rnn.n_step_gru"
)
def rnn(module):
    """Without it ``F.n_step_rnn``, ``n_step_lstm`` and ``n_step_gru`` call what the bridge does not have, and raise."""
    if cudnn.is_bridged():
        name = f"{module.__name__.rpartition('.')[2]}_base"
        setattr(module, name, _on_its_own(getattr(module, name), "RNN"))


@hooks.after_import(
    "chainer.functions.array.spatial_transformer_grid", "chainer.functions.array.spatial_transformer_sampler"
)
def spatial_transformer(module):
    """Without it the two functions of the spatial transformer call what the bridge does not have, and raise."""
    if cudnn.is_bridged():
        name = "".join(word.title() for word in module.__name__.rpartition(".")[2].split("_"))
        function = getattr(module, name)
        for method in ("forward_gpu", "backward_gpu"):
            setattr(function, method, _on_its_own(getattr(function, method), "spatial transformer"))


def _on_its_own(function, what):
    """``function``, for which alone ``chainer.should_use_cudnn`` is False, whatever the configuration says."""
    chainer = function.__globals__["chainer"]

    def should_use_cudnn(level, lowest_version=0):
        if chainer.should_use_cudnn(level, lowest_version):
            _say(what)
        return False

    return rebound(function, chainer=Overlay(chainer, should_use_cudnn=should_use_cudnn))


@functools.cache
def _say(what):
    _logger.warning("cuDNN's %s is not bridged: Chainer's own path", what)

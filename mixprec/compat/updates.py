"""Somebody may look on when an optimizer of Chainer updates a model."""

import functools

from mixprec.compat import hooks

# Functions of an optimizer. They are called after each of its updates, and are for those who know more than Chainer.
watchers = []


@hooks.after_import("chainer.optimizer")
def watched(module):
    """Without it nobody hears of FP16 weights that a plain optimizer updates: Chainer says nothing."""
    original = module.GradientMethod.update

    @functools.wraps(original)
    def update(self, lossfun=None, *args, **kwds):
        original(self, lossfun, *args, **kwds)
        for watcher in watchers:
            watcher(self)

    module.GradientMethod.update = update

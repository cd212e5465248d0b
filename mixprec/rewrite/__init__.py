"""Rewrites a user's model for mixed precision.

Reading order. Before training: ``convert`` casts ``parameters``, leaves a ``conversion`` in each link, and calls the
model on an ``example``; ``replacements`` stand in place of Chainer's methods. While the model runs: ``scope`` is one
call of the model; ``dispatch`` opens it, and chooses a rule for each function, from ``layer_rules``, ``between_layers``
or, by ``dtype_table``, ``dtype_rules``. A rule of a batch normalization calls ``Scope.normalization``, which hands it
over to ``deferred``: that computes it together with what follows, as ``fusions`` declares, and ``places`` remembers
this from call to call. ``outside`` is for what belongs to a model while it does not run. ``trace`` and
``conversion_report`` tell the user.
"""

from mixprec.rewrite.convert import convert, revert

__all__ = ["convert", "revert"]

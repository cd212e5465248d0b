"""Rewrites a user's model for mixed precision.

Reading order. Before training: ``convert`` casts ``parameters`` (except ``float32_links``), leaves a state in each
link, and calls the model on an ``example``; ``replacements`` replace Chainer's methods. While the model runs: ``scope``
is one call of the model; ``dispatch`` opens it, and chooses a rule for each function from ``layer_rules``,
``between_layers``, ``sizes`` or, by ``dtype_table``, ``dtype_rules``; ``memory_order`` and ``operands`` prepare the
inputs, ``results`` what leaves the model. A batch normalization waits in ``deferred`` for the functions after it;
``fusions`` declares which of them it is computed with, and remembers them from call to call; ``joined`` adds a second
normalization or a pooling. ``outside`` handles functions applied to a model's variables while it does not run.
``recurrent_links`` has the rules for recurrent layers and cells. ``trace``, ``narrow_results`` and
``conversion_report`` tell the user what happened.
"""

from mixprec.rewrite.convert import convert, revert

__all__ = ["convert", "revert"]

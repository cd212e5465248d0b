"""The parts of a run, each made from a config: network, optimizer, images, trainer.

Reading order. ``gpus``, ``devices``; ``networks``, ``model``, ``starting_weights``, ``optimizers``; ``stages``,
``images``, ``rates``; ``kept_activations`` and ``estimate`` (memory); ``user_code``, ``training_loss`` and
``own_extensions`` (the user's own); ``trainer``, which joins them, with ``snapshot_settings`` and ``rank_states``.
``environment`` is the report of ``mixprec info``.
"""

"""The parts of a run, each made from a config: network, optimizer, images, trainer.

Reading order. ``gpus``, ``devices``; ``networks``, ``model``, ``training_loss``, ``starting_weights``, ``optimizers``;
``stages``, ``images``, ``rates``; ``kept_activations`` and ``estimate`` (memory); ``trainer``, which joins them, with
``own_extensions``, ``snapshot_settings`` and ``rank_states``. ``user_code`` imports what a config names by an import
path; ``environment`` is the report of ``mixprec info``.
"""

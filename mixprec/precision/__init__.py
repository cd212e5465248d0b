"""Numbers in 16 bits and in 32: loss scales, FP32 master weights, and what 16 bits cannot hold.

Loss scales: ``policy``, ``loss_scale``, ``fixed_scales``; ``step_state`` and ``step_counter`` (state that each step
moves, on host and device). Gradients: ``scaled_loss``, ``pass_scales``, ``grad_scales``, ``model_parallel``;
``scale_search`` and ``repeated_pass`` find a first scale. Weights: ``storage``, ``master_arrays``, ``weight_copies``,
``lost_weights``, ``without_masters``. Wrapping (``optimizer``) and converting (``rewrite``) both stand on it.
"""

"""16-bit and FP32 numbers: loss scales, FP32 master weights, and the limits of 16 bits.

Loss scales: ``policy``, ``loss_scale``, ``fixed_scales``; ``step_state`` and ``step_counter`` (state that each step
advances, on host and device). Gradients: ``scaled_loss``, ``pass_scales``, ``grad_scales``, ``model_parallel``;
``scale_search`` and ``repeated_pass`` find a first scale. Weights: ``storage``, ``master_arrays``, ``weight_copies``,
``lost_weights``, ``without_masters``. The wrapper (``optimizer``) and the conversion (``rewrite``) both use it;
``conversion_state`` says whether a link is converted, and what a thread does.
"""

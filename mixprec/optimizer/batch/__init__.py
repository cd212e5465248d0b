"""The batched update of all parameters: on a device the same few launches, whatever the number of parameters.

In the order in which to read: ``update_plan`` and ``entries`` (which parameters are in the batch); on the host
``native_group``; on a device ``device_batch`` (the launches), ``table`` and ``values`` (data that the kernels read),
``kernel_program`` (their source, with ``kernels/``), ``saved_arrays`` (undoing a skipped step).
"""

"""Stand-ins for a CUDA device, on NumPy: they record what they are asked for.

Reading order:

1. :mod:`~benchmarks.recording_device.cupy_rules`: where CuPy differs from NumPy.
2. :mod:`~benchmarks.recording_device.arrays`: arrays on the device. What NumPy's functions do to them goes through the
   *memory* of their class, the back end: it gives out addresses, takes notes, and does work now or later.
3. :mod:`~benchmarks.recording_device.memory`: the memory of a device that computes nothing.
4. :mod:`~benchmarks.recording_device.null_device`: such a device, with launcher, cuDNN, matrices, NCCL and graphs that
   only take notes. ``step`` counts with it.

Devices that compute are subclasses in ``tests/stand_ins``: ``device_stand_in`` does so at once, ``graph_array`` when a
graph is launched.

Importing this package imports neither Chainer nor mixprec, as tests put a stand-in for CuPy in place before that.
"""

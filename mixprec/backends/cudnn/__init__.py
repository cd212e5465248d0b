"""cuDNN 9 through NVIDIA's cudnn-frontend.

Reading order. ``context`` is cuDNN on one device, and the door to this folder: it makes ``plans`` of an ``operation``,
by ``operation_graphs`` and ``engines``. ``settings`` has the user's settings. Measuring: ``search`` with ``autotune``,
``agreement`` and ``difference`` (which compare engines), ``search_time``, and ``choices`` on disk. Running:
``executor``, ``workspace``, ``handles``, ``cupy_device``. ``errors`` has the errors.
"""

"""Basics that any module of mixprec may import: messages, files, arguments, dtypes; no Chainer.

Read ``messages`` and ``files`` first: they define how errors look, and how files are
written. Checks: ``declaration`` (the keys of a config), ``bounds`` (their limits), ``arguments``, ``name_patterns``.
Texts: ``announcements`` (warnings, once each), ``text_table``, ``installation`` (commands that install extras, and
pages). Loading: ``importing``, ``archives``, ``cudnn_library``. The process: ``variables`` of its environment,
``interruption``, ``standard_streams``, ``working_folder``, ``process_limits`` (memory, processors, other processes).
Small parts: ``vocabulary`` (words for dtypes, layouts and devices), ``dtypes``, ``interface``, ``nested``, ``scoped``,
``optimizer_names`` (generated).
"""

VERSION = "0.1.0"

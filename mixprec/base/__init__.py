"""Basics that any module of mixprec may import: messages, files, arguments, dtypes; no Chainer.

Read :mod:`~mixprec.base.messages` and :mod:`~mixprec.base.files` first: they define how errors look, and how files are
written. :mod:`~mixprec.base.declaration` declares the keys of a config, :mod:`~mixprec.base.bounds` their limits.
:mod:`~mixprec.base.installation` names the commands that install extras, and pages. :mod:`~mixprec.base.interruption`
and :mod:`~mixprec.base.standard_streams` are for commands; :mod:`~mixprec.base.process_limits` says how much memory and
how many processors there are.
"""

VERSION = "0.1.0"

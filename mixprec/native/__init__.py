"""A library in C++ for the processor, compiled when mixprec is installed.

:func:`mixprec.native.native_library.library` loads it. Its sources are in the folder ``source``. The primitives on
NumPy's arrays (:mod:`mixprec.backends.cpu.native_primitives`), casts and the batched update use it. Without it NumPy
computes the same. See docs/native.md.
"""

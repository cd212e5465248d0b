"""A C++ library for the CPU, compiled when mixprec is installed.

``native_library`` loads it, ``sources`` compares it with the folder ``source``. The primitives on NumPy's arrays
(:mod:`mixprec.backends.cpu.native_primitives`), casts and the batched update use it. Without it NumPy computes the
same. See docs/native.md.
"""

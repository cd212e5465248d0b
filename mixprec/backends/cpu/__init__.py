"""The primitives on NumPy."""

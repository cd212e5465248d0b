"""Where arithmetic happens: NumPy on the CPU."""

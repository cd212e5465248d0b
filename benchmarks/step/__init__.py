"""One training step: what it asks of a device, and what its Python costs. Neither needs a GPU."""

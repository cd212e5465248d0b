"""What a training step asks of a device, counted without one."""

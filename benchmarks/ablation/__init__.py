"""What each ingredient of today's recipes brings to an accuracy: paired runs of the training script."""

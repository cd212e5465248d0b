"""The memory of activations: the largest image that trains within a budget, and the memory of a step over time."""

"""The batched update: a step of the optimizer costs the same number of launches, whatever the number of parameters."""

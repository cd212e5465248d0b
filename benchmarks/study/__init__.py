"""Studies: the same training with other settings and the same seeds, and what the paired differences say."""

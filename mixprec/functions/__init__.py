"""What function nodes do in a converted model."""

"""What comes after training: weights for other programs."""

from mixprec.export.state_dicts import load_torchvision, torchvision
from mixprec.export.weights_error import WeightsError

__all__ = ["WeightsError", "load_torchvision", "torchvision"]

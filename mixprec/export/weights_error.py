"""The error about weights that cannot be used."""

from mixprec.base.messages import OneLineError


class WeightsError(OneLineError):
    """Weights that do not fit, or a file of them that cannot be used; the message is one line and names the culprit."""

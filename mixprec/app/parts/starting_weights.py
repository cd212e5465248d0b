"""The weights that training starts from, of ``model.weights``.

The training command makes a :class:`StartingWeights` unless it resumes, and
:func:`mixprec.app.parts.model.make_model` loads them.
"""

from mixprec.app.config import ConfigError
from mixprec.export.export_error import WeightsError
from mixprec.export.weight_files import WeightFile


class StartingWeights:
    """A file of weights for the network of a config; after a call, ``str`` describes the loaded weights.

    Args:
        settings: :class:`mixprec.app.config.run.Model`; its ``weights`` are not null.
    """

    def __init__(self, settings):
        self._settings = settings
        self._loaded = None

    def load(self, network):
        """Loads the file into a new network, on the CPU and in FP32.

        The head stays as it is if the file has another number of classes.

        Raises:
            ConfigError: the file cannot be used, or belongs to another network.
        """
        path, arch = self._settings.weights, self._settings.arch
        try:
            self._loaded = WeightFile(path).load_into(network, self._settings.classes)
        except WeightsError as error:
            raise ConfigError(f"'model.weights' cannot be loaded into {arch}", str(error)) from error

    def __str__(self):
        head, classes = ", ".join(self._loaded.head), self._settings.classes
        text = f"{self._loaded.tensors} tensors of {self._settings.weights}"
        there = f"{classes} classes instead of {self._loaded.classes}"
        return text if not head else f"{text}; {head} is initialized anew, with {there}"

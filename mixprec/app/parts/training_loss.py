"""The user's own loss that ``training.loss`` may name, and the weights of ``training.class_weights``.

The training command tries a loss before the images are scanned.
"""

import inspect

import chainer
import numpy as np

from mixprec.app.config import ConfigError
from mixprec.app.config.config_error import shown
from mixprec.app.parts import user_code
from mixprec.data.data_error import DataError, and_more
from mixprec.rewrite.float32_links import in_float32
from mixprec.training.label_accuracy import IGNORED

_WANTED = "wanted: a function of logits (N, classes) and labels (N,) that returns the mean loss"
_MEAN = "wanted: the mean loss over the images, a chainer.Variable () float32"
_ROUNDING = 1e-3


class OwnLoss:
    """A user's loss function, called in float32 in any precision of the model.

    For mixed images it is the mean of the losses for both labels, weighted by their shares (Zhang et al. 2018).

    Args:
        function: callable that takes logits (N, K), a float32 variable, and labels (N,), an int32 array, and returns
            the mean over the images, a float32 variable ().
    """

    def __init__(self, function):
        self.function = function

    def __call__(self, y, t, mixed=None):
        """Returns the loss; ``mixed`` is as for :func:`mixprec.functions.softmax_cross_entropy`."""
        return in_float32(self._mean, y, t, mixed)

    def _mean(self, y, t, mixed):
        if mixed is None:
            return self.function(y, t)
        second, share = mixed
        return self.function(y, t) * share + self.function(y, second) * (1 - share)


def find(training):
    """Returns the :class:`OwnLoss` that a config names, or ``None`` if it names a loss of mixprec.

    Args:
        training: :class:`mixprec.app.config.run.Training`.

    Raises:
        ConfigError: there is none, or it cannot be called in this way.
    """
    if not training.has_own_loss:
        return None
    named = _named(training)
    function = user_code.load(named, training.loss, ("cross_entropy", "bce"))
    if inspect.isclass(function):
        raise ConfigError(named, f"found the class {function.__name__}; {_WANTED}, or an object that is called so")
    if not callable(function):
        raise ConfigError(named, f"found {type(function).__name__}; {_WANTED}")
    if isinstance(function, chainer.Link) and any(True for _ in function.params()):
        raise ConfigError(named, f"found a {type(function).__name__} with parameters, which nothing trains; {_WANTED}")
    user_code.check_call(named, function, "logits and labels", None, None)
    return OwnLoss(function)


def check(config, device, ranks=1):
    """Tries the user's own loss on two images: its result, its gradient, and whether it ignores padding.

    Labels of -1 come with ``data.last_batch: pad``, and where one of several ranks has no image in the last batch.

    Args:
        config: :class:`mixprec.app.config.Config`.
        device: device specifier of Chainer.
        ranks: number of processes that train together.

    Raises:
        ConfigError: the function does not fit; the message is one line.
    """
    own = find(config.training)
    if own is None:
        return
    named, classes, device = _named(config.training), config.model.classes, chainer.get_device(device)
    logits = np.random.RandomState(0).normal(size=(2, classes)).astype(np.float32)

    def loss(labels):
        y = chainer.Variable(device.send(logits[: len(labels)]))
        called = f"called with logits {y.shape} float32 and the labels {labels} int32"
        value = user_code.call(named, called, own.function, y, device.send(np.array(labels, np.int32)))
        if not (isinstance(value, chainer.Variable) and value.shape == () and value.dtype == np.float32):
            raise ConfigError(named, f"{called} it returns {user_code.kind(value)}; {_MEAN}")
        user_code.call(named, f"{called}, in the backward pass", value.backward)
        if y.grad is None:
            raise ConfigError(named, f"{called} it returns a value that does not depend on the logits; {_MEAN}")
        found = float(value.array)
        if not np.isfinite(found):
            raise ConfigError(named, f"{called} it returns {found}; {_MEAN}")
        return found

    device.use()
    loss([0, classes - 1])
    if config.data.last_batch == "pad" or ranks > 1:
        one, padded = loss([0]), loss([0, IGNORED])
        if abs(one - padded) > _ROUNDING * abs(one) or loss([IGNORED]) != 0:
            raise ConfigError(
                named,
                f"it returns {one:g} for the labels [0] and {padded:g} for [0, {IGNORED}]; wanted: the same, and 0 for "
                f"[{IGNORED}]: labels of {IGNORED} are padding, which comes with data.last_batch pad and with several "
                "processes, and does not count, as in chainer.functions.softmax_cross_entropy",
            )


def class_weights(config, source):
    """Returns the weights of the classes in the training loss, (classes,) float32, or ``None``.

    Args:
        config: :class:`mixprec.app.config.Config`.
        source: training images, whose ``labels`` are counted for ``balanced``.

    Raises:
        DataError: ``balanced``, and a class has no image.
    """
    weights, classes = config.training.class_weights, config.model.classes
    if weights is None:
        return None
    if weights == "balanced":
        counts = np.bincount(source.labels, minlength=classes)
        missing = np.flatnonzero(counts == 0)
        if len(missing):
            raise DataError(
                f"{config.data.train}: no image of class {missing[0]}{and_more(len(missing))}, and "
                "training.class_weights is 'balanced', which divides by their number; give a list of weights"
            )
        weights = len(source) / (classes * counts)
    return np.array(weights, np.float32)


def _named(training):
    return f"'training.loss' is {shown(training.loss)}"

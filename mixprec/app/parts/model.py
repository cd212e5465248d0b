"""Builds the model of a config: the network, the loss, the accuracies, and the conversion.

The training command calls :func:`make_model`, sets up the optimizer, and then calls :func:`convert_model`, so that FP32
masters start from unrounded weights. :func:`build_model` does all three for one process.
"""

import dataclasses
import operator

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from mixprec import functions
from mixprec.app.config import ConfigError
from mixprec.app.parts import training_loss
from mixprec.app.parts.networks import EXAMPLE
from mixprec.app.parts.networks import make as make_network
from mixprec.app.parts.optimizers import NETWORK, build_optimizer, check_parts, unknown
from mixprec.app.parts.user_code import signature_of
from mixprec.backends.cudnn import settings as cudnn_settings
from mixprec.base.name_patterns import UnknownName
from mixprec.rewrite import convert
from mixprec.rewrite.float32_links import in_float32
from mixprec.training.label_accuracy import IGNORED, TOP, accuracy


def build_model(config, network, device, weights=None):
    """Builds the model and the optimizer of a config.

    Args:
        config, network, device, weights: as for :func:`make_model`.

    Returns:
        ``(model, optimizer, report)``: an :class:`ImageClassifier` on the device, the
        :class:`~mixprec.MixedPrecisionOptimizer` that is set up on it, and the report of the conversion.

    Raises:
        ConfigError: as :func:`make_model` and :func:`convert_model` raise it.
    """
    model = make_model(config, network, device, weights)
    optimizer = build_optimizer(config, model)
    return model, optimizer, convert_model(config, model, device)


def make_model(config, network, device, weights=None):
    """Seeds the random generators, applies the cuDNN settings of the config, and makes the classifier.

    Args:
        config: :class:`mixprec.app.config.Config`.
        network: callable that takes the number of classes and returns a Chainer link from images to logits. It is
            called with ``zero_init_residual=True`` and with ``stochastic_depth`` if the config sets them.
        device: device specifier of Chainer (``"@numpy"``, ``"@cupy:0"``).
        weights: :class:`mixprec.app.parts.starting_weights.StartingWeights`, or ``None`` for the network's own.

    Returns:
        ImageClassifier: on the host, with the weights of the network or the file, in float32.

    Raises:
        ConfigError: one of these keys is set, and the network does not accept it; the user's network raised an
            exception, or is not a network; there is no such loss; or ``weights``, ``optimizer.rates`` or
            ``optimizer.freeze`` do not fit it.
    """
    keywords, own = _keywords(config.model, network), training_loss.find(config.training)
    device = chainer.get_device(device)
    device.use()
    _seed(device, config.training.seed)
    cudnn = dataclasses.asdict(config.cudnn)
    workspace, tf32 = cudnn.pop("workspace_mib") * 2**20, cudnn.pop("allow_tf32")
    cudnn_settings.configure(workspace=workspace, tf32=tf32, **cudnn)
    made = make_network(config, network, keywords)
    if weights is not None:
        weights.load(made)
    options = {"bce": config.training.loss == "bce", "threshold": config.training.bce_threshold, "own": own}
    model = ImageClassifier(made, config.training.label_smoothing, **options)
    check_parts(config.optimizer, model)
    return model


def convert_model(config, model, device, rank=0):
    """Converts a classifier, and moves it to the device.

    Args:
        config: :class:`mixprec.app.config.Config`.
        model: from :func:`make_model`; its optimizer is set up.
        device: device specifier of Chainer.
        rank: rank of this process, if several train together.

    Returns:
        The report of the conversion.

    Raises:
        ConfigError: a pattern of ``precision.keep_float32`` fits no link.
    """
    try:
        report = convert(
            model,
            np.zeros((EXAMPLE, 3, config.data.size, config.data.size), np.float32),
            compute=config.precision.compute,
            layout=config.model.memory_format,
            fuse=config.model.fuse,
            conv_statistics=config.model.conv_statistics,
            keep_float32=tuple(f"{NETWORK}{pattern}" for pattern in config.precision.keep_float32),
        )
    except UnknownName as error:
        raise unknown("precision.keep_float32", error) from error
    device = chainer.get_device(device)
    model.to_device(device)
    if rank:  # all ranks have the same model, but different random numbers in its steps, such as dropout
        _seed(device, (config.training.seed + rank * 0x9E3779B1) % 2**32)
    return report


def _seed(device, seed):
    for xp in {np, device.xp}:
        xp.random.seed(seed)
    functions.reset_dropout()  # whose state is drawn from np.random once in a process


class ImageClassifier(L.Classifier):
    """Chainer's classifier with the losses of current recipes and a top-5 accuracy; labels of -1 never count.

    It reports ``loss`` and ``accuracy``. With ``chainer.config.train`` off, the loss is the softmax cross entropy
    without smoothing and class weights, or the user's own loss, and ``accuracy_top5`` is reported, too, unless there
    are so few classes that it would be 1. For mixed images, the accuracy refers to the first label.

    Args:
        predictor: link from images to logits (N, K).
        smoothing: from 0 to below 1, see :func:`mixprec.functions.softmax_cross_entropy`.
        bce: whether the loss is :func:`mixprec.functions.binary_cross_entropy`.
        threshold: its threshold.
        own: :class:`mixprec.app.parts.training_loss.OwnLoss` instead of the cross entropies, or ``None``.

    Attributes:
        class_weights: weights of the softmax cross entropy in training, (K,) float32 on the device, or ``None``. The
            loss is the sum of weighted losses divided by the sum of the weights of the labels, as in PyTorch.
    """

    class_weights = None

    def __init__(self, predictor, smoothing=0.0, *, bce=False, threshold=None, own=None):
        super().__init__(predictor, F.softmax_cross_entropy, accuracy)
        self._smoothing, self._bce, self._threshold, self._own = smoothing, bce, threshold, own

    def forward(self, x, t, second=None, share=None):
        """Returns the loss of a batch.

        Args:
            x: images (N, 3, H, W).
            t: labels (N,), signed integers.
            second: for mixed images, the labels of the images that were mixed in; otherwise ``None``.
            share: for mixed images, the share of ``t``, see :class:`mixprec.data.mixing.Mixing`.
        """
        self.y = self.loss = self.accuracy = None
        self.y = self.predictor(x)
        self.loss = self._loss(t, None if second is None else (second, share))
        chainer.report({"loss": self.loss}, self)
        knows_loss = {"loss": self.loss} if self.accfun is accuracy else {}  # not a function that a user has set
        self.accuracy = self.accfun(self.y, t, **knows_loss)
        chainer.report({"accuracy": self.accuracy}, self)
        if not chainer.config.train and self.y.shape[1] > TOP:
            chainer.report({f"accuracy_top{TOP}": accuracy(self.y, t, TOP)}, self)
        return self.loss

    def _loss(self, t, mixed):
        options, weights = {"smoothing": self._smoothing, "mixed": mixed}, self.class_weights
        if self._own is not None:
            return self._own(self.y, t, mixed)
        if not (self._bce or self._smoothing or mixed or weights is not None):
            return self.lossfun(self.y, t)
        if not chainer.config.train:
            return functions.softmax_cross_entropy(self.y, t)
        if self._bce:
            return functions.binary_cross_entropy(self.y, t, threshold=self._threshold, **options)
        loss = functions.softmax_cross_entropy(self.y, t, class_weight=weights, **options)  # divided by the images
        if weights is None:
            return loss
        total = self.weight((None, t))  # second labels are the same ones in reversed order, and have the same sum
        factor = (t != IGNORED).sum() / (total + (total == 0))
        return in_float32(operator.mul, loss, factor.astype(np.float32))

    def weight(self, batch):
        """Returns the sum of the class weights of a batch, a tuple of images, labels, ...: () float32, on the device.

        Labels of -1 have none.
        """
        t = batch[1]
        weights = self.class_weights[t] * (t != IGNORED)  # -1 takes the last one
        return weights.sum(dtype=np.float32)


def _keywords(settings, network):
    defaults = {"zero_init_residual": False, "stochastic_depth": 0.0}
    found = {name: value for name in defaults if (value := getattr(settings, name))}
    if not found:
        return found
    signature = signature_of(network)
    parameters = () if signature is None else signature.parameters.values()
    for name, value in found.items():
        if not any(each.name == name or each.kind == each.VAR_KEYWORD for each in parameters):
            value, default = (str(each).lower() for each in (value, defaults[name]))
            raise ConfigError(f"'model.{name}' is {value}, which {settings.arch} does not have; set it to {default}")
    return found

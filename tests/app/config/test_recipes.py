"""The recipes in configs/resnet50 beside the code of their sources, by numbers: rates, sizes, targets of the loss."""

import pathlib

import chainer
import numpy as np
import pytest

from mixprec.app.config import load
from mixprec.app.parts.images import mixing_of
from mixprec.app.parts.model import ImageClassifier
from mixprec.app.parts.rates import images_per_step, rates_of
from mixprec.app.parts.stages import stages_of, steps_of
from mixprec.data.mixing import Mixing

CONFIGS = pathlib.Path(__file__).parents[3] / "configs/resnet50"
IMAGES, CLASSES = 1281167, 10


def _config(name):
    return load(CONFIGS / f"{name}.yaml")


def _timm_rate(t, lr, epochs):
    """CosineLRScheduler of timm, October 2021, by epochs: warmup_lr_init 1e-4, lr_min 1e-6, no warmup_prefix."""
    if t < 5:
        return 1e-4 + t * (lr - 1e-4) / 5
    return 1e-6 + 0.5 * (lr - 1e-6) * (1 + np.cos(np.pi * t / epochs))


def _torchvision_rate(t):
    """SequentialLR of LinearLR(start_factor=0.01, total_iters=5) and CosineAnnealingLR(T_max=595), by epochs."""
    return 0.5 * (0.01 + 0.99 * t / 5) if t < 5 else 0.25 * (1 + np.cos(np.pi * (t - 5) / 595))


EPOCH_RATES = {
    "rsb_a3": lambda t: _timm_rate(t, 8e-3, 100),
    "rsb_a2": lambda t: _timm_rate(t, 5e-3, 300),
    "torchvision_v2": _torchvision_rate,
    "finetune": lambda t: 0.01 * 0.1 ** (t // 7),  # StepLR(step_size=7, gamma=0.1)
}


@pytest.mark.parametrize("name", EPOCH_RATES)
def test_the_rate_of_each_epoch_is_that_of_the_source(name):
    config = _config(name)
    rates, steps = rates_of(config, IMAGES), steps_of(config, IMAGES)
    count = steps.in_epoch(0)
    for epoch in range(config.training.epochs):
        for step in (0, count // 2, count - 1):
            start = steps.start(epoch * count + step)
            assert rates.at(start) == pytest.approx(EPOCH_RATES[name](epoch), rel=1e-9)


def test_rate_and_size_are_those_of_ffcv():
    """train_imagenet.py: get_cyclic_lr, get_resolution with min_res 160, max_res 192, start_ramp 11, end_ramp 13."""

    def get_lr(epoch):
        return np.interp([epoch], [0, 2, 16], [1e-4 * 1.7, 1.7, 0])[0]

    def get_resolution(epoch):
        if epoch <= 11:
            return 160
        if epoch >= 13:
            return 192
        return int(np.round(np.interp([epoch], [11, 13], [160, 192])[0] / 32)) * 32

    config = _config("ffcv_rn50_16ep")
    rates, steps, stages = rates_of(config, IMAGES), steps_of(config, IMAGES), stages_of(config)
    count = steps.in_epoch(0)
    for epoch in range(16):
        expected = np.interp(np.arange(count), [0, count], [get_lr(epoch), get_lr(epoch + 1)])
        found = [rates.at(steps.start(epoch * count + step)) for step in range(count)]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1.7e-3)  # a step here is a share of all images
        assert found[0] == pytest.approx(expected[0], rel=1e-12)
        (size,) = {stage.size for stage in [each for each in stages if each.first <= epoch][-1:]}
        assert size == get_resolution(epoch)
    assert (config.data.val_size, config.data.resize) == (256, round(256 / 0.875))


# images a step, epochs, optimizer, weight decay, clipping, mixup, cutmix, size, size in validation, operations, repeats
NUMBERS = {
    "rsb_a3": (2048, 100, "LAMB", 0.02, 1.0, 0.1, 1.0, 160, 224, ("rand", 2, 18, 1.5, 0.5), 0.0, 1, 0.0),
    "rsb_a2": (2048, 300, "LAMB", 0.02, 1.0, 0.1, 1.0, 224, 224, ("rand", 2, 21, 1.5, 0.5), 0.0, 3, 0.05),
    "torchvision_v2": (
        *(1024, 600, "CorrectedMomentumSGD", 2e-5, None, 0.2, 1.0, 176, 224, ("trivial", 2, 9, 0.0, 1.0)),
        *(0.1, 4, 0.0),
    ),
    "ffcv_rn50_16ep": (
        *(4096, 16, "CorrectedMomentumSGD", 1e-4, None, 0.0, 0.0, 192, 256, ("none", 2, 9, 0.0, 1.0)),
        *(0.0, 1, 0.0),
    ),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_those_of_the_source(name):
    config = _config(name)
    training, data, optimizer = config.training, config.data, config.optimizer
    operations = (
        *(data.augment, data.augment_operations, data.augment_magnitude),
        *(data.augment_deviation, data.augment_probability),
    )
    found = (
        *(images_per_step(config), training.epochs, optimizer.name, optimizer.weight_decay, optimizer.clip_norm),
        *(training.mixup, training.cutmix, data.size, data.val_size, operations),
        *(data.erase, data.repeats, config.model.stochastic_depth),
    )
    assert found == NUMBERS[name]
    assert (optimizer.base_batch_size, optimizer.decay_norm_and_bias) == (None, False)
    assert (data.crop_area, data.flip, data.last_batch) == ((0.08, 1.0), True, "drop")
    if optimizer.name != "LAMB":
        assert optimizer.momentum == 0.9
    if name.startswith("rsb"):
        assert data.resize == 224 / 0.95 // 1
        assert config.model.zero_init_residual


def _targets(config, labels, mixed):
    """The distribution that the loss of a config compares with, from its gradient at logits of 0, in float64."""
    given = np.zeros((len(labels), CLASSES), np.float32)
    logits = chainer.Parameter(given)
    settings = config.training
    classifier = ImageClassifier(
        lambda x: logits, settings.label_smoothing, bce=settings.loss == "bce", threshold=settings.bce_threshold
    )
    classifier(given, labels, *mixed).backward()
    gradient = logits.grad.astype(np.float64) * len(labels)
    if settings.loss == "bce":
        return 0.5 - gradient * CLASSES  # sigmoid(0), mean over classes
    return 1 / CLASSES - gradient


def _one_hot(labels):
    return np.eye(CLASSES)[labels]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("name", ["rsb_a3", "rsb_a2", "torchvision_v2", "ffcv_rn50_16ep", "finetune"])
def test_targets_of_the_loss_are_those_of_the_source(name, share):
    """timm's mixup_target with its reversed batch, BinaryCrossEntropy's threshold; torch's label smoothing of a mix."""
    config, labels = _config(name), np.array([3, 1, 4, 1, 5], np.int32)
    mixing = mixing_of(config)
    assert isinstance(mixing, Mixing) == (name in ("rsb_a3", "rsb_a2", "torchvision_v2"))
    second = labels[::-1].copy()
    mixed = (second, np.array(share, np.float32)) if mixing is not None else ()
    target = share * _one_hot(labels) + (1 - share) * _one_hot(second) if mixed else _one_hot(labels)
    if name.startswith("rsb"):
        target = (np.float32(target) > 0.2).astype(float)
    if name in ("torchvision_v2", "ffcv_rn50_16ep"):
        target = 0.9 * target + 0.1 / CLASSES
    np.testing.assert_allclose(_targets(config, labels, mixed), target, atol=3e-6)


def test_the_average_is_that_of_torchvision():
    """alpha = (1 - 0.99998) * 8 * 128 * 32 / 600 every 32 steps."""
    decay = 1 - (1 - 0.99998) * 8 * 128 * 32 / 600
    assert _config("torchvision_v2").training.ema_decay == pytest.approx(decay ** (1 / 32), abs=1e-8)


def test_all_configs_search_for_the_first_loss_scale():
    files = list(CONFIGS.parent.rglob("*.yaml"))
    assert len(files) > 10
    assert all(load(path).loss_scale.search for path in files)

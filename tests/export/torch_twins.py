"""ResNets of PyTorch with torchvision's names, as twins of those in ``models/``, and the logits of both."""

import chainer
import numpy as np
import torch
from torch import nn

from benchmarks.bars import torch_resnet


def twin(arch, classes, seed=0):
    """Returns the module of an architecture, in evaluation mode, with weights and statistics that differ everywhere."""
    return _randomized(torch_resnet.network(arch, classes), seed)


def logits(network, images):
    """Returns the logits of a Chainer link or a module of PyTorch in evaluation mode, as an array."""
    if isinstance(network, nn.Module):
        with torch.no_grad():
            return network(torch.from_numpy(images)).numpy()
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        return network(images).array


def images(side=32, count=2):
    return np.random.default_rng(7).standard_normal((count, 3, side, side)).astype(np.float32)


def _randomized(module, seed):
    random = torch.Generator().manual_seed(seed)
    for each in module.modules():
        if isinstance(each, nn.BatchNorm2d):
            each.num_batches_tracked = torch.tensor(7 + seed)
            for tensor, low, high in (
                (each.weight, 0.5, 1.2),
                (each.bias, -0.5, 0.5),
                (each.running_mean, -0.5, 0.5),
                (each.running_var, 0.5, 2.0),
            ):
                tensor.data.uniform_(low, high, generator=random)
        elif isinstance(each, nn.Linear):
            each.bias.data.normal_(generator=random)
    return module.eval()

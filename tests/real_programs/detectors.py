"""chainercv's SSD and Faster R-CNN on drawn rectangles, as its examples train them.

    python -m tests.real_programs.detectors SSD            plain Chainer
    python -m tests.real_programs.detectors SSD float16    the model converted, and the optimizer wrapped

The networks below them are small ones in place of VGG-16; all else is chainercv's.
"""

import argparse

import mixprec.old_code  # isort: skip (before what needs it)

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainercv.links.model import ssd
from chainercv.links.model.faster_rcnn import FasterRCNN, FasterRCNNTrainChain, RegionProposalNetwork

import mixprec

SIZE = 64


class _Extractor(chainer.Chain):
    """Features at a stride of 8, and for SSD at 16, too, the first ones normalized as in SSD's VGG-16."""

    insize, grids = SIZE, (8, 4)

    def __init__(self, two):
        super().__init__()
        with self.init_scope():
            self.c1, self.c2, self.c3 = (L.Convolution2D(None, n, 3, 1, 1) for n in (16, 32, 32))
            if two:
                self.norm = ssd.Normalize(32, initial=20)
                self.c4 = L.Convolution2D(32, 32, 3, 2, 1)
        self.two = two

    def forward(self, x):
        h = x
        for layer in (self.c1, self.c2, self.c3):
            h = F.max_pooling_2d(F.relu(layer(h)), 2)
        return [self.norm(h), F.relu(self.c4(h))] if self.two else h


class _Head(chainer.Chain):
    """As that of Faster R-CNN on VGG-16: ROI pooling, a hidden layer, locations and scores of 3 classes."""

    n_class = 3

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.hidden = L.Linear(32 * 16, 64)
            self.cls_loc = L.Linear(64, self.n_class * 4, initialW=chainer.initializers.Normal(0.001))
            self.score = L.Linear(64, self.n_class, initialW=chainer.initializers.Normal(0.01))

    def forward(self, x, rois, roi_indices):
        indexed = self.xp.concatenate((roi_indices.astype(np.float32)[:, None], rois), axis=1)
        h = F.roi_pooling_2d(x, indexed[:, [0, 2, 1, 4, 3]], 4, 4, 1 / 8)
        h = F.relu(self.hidden(h))
        return self.cls_loc(h), self.score(h)


class _SSDTrainChain(chainer.Chain):
    """chainercv's example has this class."""

    def __init__(self, model):
        super().__init__()
        with self.init_scope():
            self.model = model

    def forward(self, images, locations, labels):
        found = self.model(images)
        location, confidence = ssd.multibox_loss(*found, locations, labels, 3)
        return location + confidence


def drawn(random):
    """Returns an image of one bright rectangle, its box and its class, which is its colour."""
    image = random.uniform(0, 40, (3, SIZE, SIZE)).astype("float32")
    (y, x), (h, w) = random.randint(2, 24, 2), random.randint(18, 38, 2)
    label = random.randint(2)
    image[label, y : y + h, x : x + w] += 200
    return image, np.array([[y, x, y + h, x + w]], "float32"), np.array([label], "int32")


def _ssd():
    multibox = ssd.Multibox(3, ((2,), (2,)))
    model = ssd.SSD(_Extractor(two=True), multibox, (8, 16), (16, 32, 48), mean=100)

    def batch(random):
        samples = [(image - model.mean, *model.coder.encode(box, label)) for image, box, label in _samples(random, 4)]
        return tuple(np.stack(each) for each in zip(*samples, strict=True))

    return model, _SSDTrainChain(model), batch, 1e-3


def _faster_rcnn():
    counts = {f"n_{which}_{when}_nms": 50 for which in ("train", "test") for when in ("pre", "post")}
    rpn = RegionProposalNetwork(32, 32, anchor_scales=[1, 2, 4], feat_stride=8, proposal_creator_params=counts)
    model = FasterRCNN(_Extractor(two=False), rpn, _Head(), np.full((3, 1, 1), 100, "float32"), SIZE, SIZE)

    def batch(random):
        image, box, label = drawn(random)
        return (image - model.mean)[None], box[None], label[None], np.ones(1, "float32")

    return model, FasterRCNNTrainChain(model), batch, 1e-3


def _samples(random, number):
    return [drawn(random) for _ in range(number)]


DETECTORS = {"SSD": (_ssd, 60), "FasterRCNN": (_faster_rcnn, 80)}


def train(name, compute=None, seed=0):
    """Returns the losses of all steps, an array, and what the trained detector finds in three images."""
    np.random.seed(seed)
    random = np.random.RandomState(seed)
    make, steps = DETECTORS[name]
    model, chain, batch, rate = make()
    optimizer = chainer.optimizers.Adam(rate)
    if compute is not None:
        optimizer = mixprec.MixedPrecisionOptimizer(optimizer)
    optimizer.setup(chain)
    for parameter in chain.params():
        if parameter.name != "b":
            parameter.update_rule.add_hook(chainer.optimizer_hooks.WeightDecay(5e-4))
    if compute is not None:
        mixprec.convert(chain, batch(random), compute=compute)
    losses = []
    for _ in range(steps):
        arguments = batch(random)
        optimizer.update(chain, *arguments)
        with chainer.no_backprop_mode():
            losses.append(float(chain(*arguments).array))
    return np.array(losses), model.predict([image + 0 for image, _, _ in _samples(random, 3)])


def main():
    parser = argparse.ArgumentParser(description="Trains a detector of chainercv; prints its first and last losses.")
    parser.add_argument("detector", choices=DETECTORS)
    parser.add_argument("compute", nargs="?", choices=("float16", "bfloat16", "float32"))
    given = parser.parse_args()
    losses, (boxes, labels, scores) = train(given.detector, given.compute)
    assert len(boxes) == len(labels) == len(scores) == 3
    print(f"{losses[:10].mean():.3f} {losses[-10:].mean():.3f}")


if __name__ == "__main__":
    main()

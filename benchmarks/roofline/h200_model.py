"""The time of a training step's launches on an H200: a model, of which nothing has been measured.

A launch takes as long as its bytes or its products need, whichever is longer, at a share of what a copy and a large
product reach, and never less than its kind's least. Two launches have a gap between them. Where images are not read in
the order of memory, what counts is whole sectors from the second-level cache. Nothing is said of what caches keep, nor
of launches that run beside each other: a second stream has the same launches and bytes.
"""

import dataclasses
import math

from benchmarks.profile import kinds
from benchmarks.step.launches import CONVERSION, SECTOR, Launch

COPY, PRODUCTS = 4.3e12, 790e12  # bytes and floating-point operations in a second, of an H200
_SMALL, _LARGE = 32, 256  # batches between which shares go from the first to the second
_CONV_BYTES, _CONV_FLOPS = (0.70, 0.75), (0.40, 0.50)
_WGRAD = 1.15  # times as long as the others
_STEM, _STEM_CHANNELS = 0.12, 8  # share of products with fewer channels than that
OTHER_BYTES = 0.84  # of a copy, such as batch normalization
SECTORS = 6.5e12  # bytes in a second, from the second-level cache
LEAST = {kinds.OTHER: 2e-6}
KERNEL = 5e-6  # of any other
_TWICE = 9e-6  # of one that passes twice over its arrays
GAP = 1.1e-6
_CONVOLUTIONS = (kinds.CONV_FPROP, kinds.CONV_DGRAD, kinds.CONV_WGRAD)

ASSUMPTIONS = {
    "copy, bytes/s": COPY,
    "products, FLOP/s": PRODUCTS,
    f"convolutions, share of a copy at batches of {_SMALL} and {_LARGE}": _CONV_BYTES,
    f"convolutions, share of products at batches of {_SMALL} and {_LARGE}": _CONV_FLOPS,
    "conv wgrad, times as long": _WGRAD,
    f"convolutions of fewer than {_STEM_CHANNELS} channels, share of products": _STEM,
    "all others, share of a copy": OTHER_BYTES,
    "sectors of what is not read in the order of memory, bytes/s": SECTORS,
    "least seconds of a launch": KERNEL,
    "least seconds of a launch that passes twice over its arrays": _TWICE,
    **{f"least seconds of a launch, kind {kind}": seconds for kind, seconds in LEAST.items()},
    "gap between launches, seconds": GAP,
}


def seconds(launch, batch):
    """Returns the seconds of a :class:`~benchmarks.step.launches.Launch` for a batch of so many images, but the gap."""
    moved = launch.moved(batch)
    if launch.filter is not None:
        rate = PRODUCTS * _STEM if launch.filter[2] < _STEM_CHANNELS else product_rate(batch)
        by_bytes = moved / (COPY * _between(_CONV_BYTES, batch))
        time = max(by_bytes, launch.flops * batch / rate)
        time *= _WGRAD if launch.kind == kinds.CONV_WGRAD else 1
    else:
        time = max(moved / (COPY * OTHER_BYTES), launch.sectors * batch / SECTORS)
    return max(time, _TWICE if 0 < launch.again < launch.bytes else LEAST.get(launch.kind, KERNEL))


def product_rate(batch):
    """Returns the floating-point operations in a second of a convolution's products in a batch of so many images."""
    return PRODUCTS * _between(_CONV_FLOPS, batch)


def _between(shares, batch):
    small, large = shares
    part = math.log2(batch / _SMALL) / math.log2(_LARGE / _SMALL)
    return small + (large - small) * min(1, max(0, part))


# Other ways to do the same than the recorded one. Each takes and returns a list of launches.


def sums_apart(launches):
    """Gradients are added by launches of their own, in the order of memory."""
    found, after_sum = [], False
    for launch in launches:
        if launch.added:
            found.append(Launch(kinds.GRADIENT_SUM, "add", 3 * launch.added))
            rest, again = launch.bytes - launch.for_sums, max(0, launch.again - launch.added)
            launch = dataclasses.replace(launch, bytes=rest, again=again, added=0, for_sums=0)
        if not (after_sum and launch.kind == CONVERSION):
            found.append(dataclasses.replace(launch, sectors=0) if launch.kind == kinds.GRADIENT_SUM else launch)
        after_sum = launch.kind == kinds.GRADIENT_SUM
    return found


def sums_in_order_of_axes(itemsize, launches):
    """Gradients are added in the order of the axes (N, C, H, W), as by CuPy's functions, and converted back to NHWC."""
    found = []
    for launch in sums_apart(launches):
        if launch.kind == kinds.GRADIENT_SUM:
            array = launch.bytes / 3
            found.append(dataclasses.replace(launch, sectors=2 * array / itemsize * SECTOR))
            found.append(Launch(CONVERSION, "to_nhwc", 2 * array))
        else:
            found.append(launch)
    return found

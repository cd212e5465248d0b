"""Random numbers of a place in an epoch: the same in any process, at any time, and whatever was drawn before."""

import math

CROP = 0


def uniforms(count, spec, epoch, purpose, place, copy=0):
    """Returns numbers in [0, 1).

    Args:
        count (int): How many.
        spec (BatchSpec): With the seed.
        epoch (int): Number of the epoch.
        purpose (int): Counter of Philox that nothing else uses: ``CROP``, or that of an augmentation; 1 is that of
            :mod:`mixprec.data.mixing`, whose keys are the same.
        place (int): In the order of the epoch; or of crops the index of the image.
        copy (int): Of crops, which of the copies of an image in the epoch this is.

    Returns:
        list of float: With 53 random bits each.
    """
    import numpy as np  # not at the top: configs are checked without it

    # Philox is a function of key and counter (Salmon et al. 2011), and its bits are the same in all versions of NumPy.
    bits = np.random.Philox(key=[spec.seed, epoch], counter=[0, copy, purpose, place]).random_raw(count)
    return ((bits >> np.uint64(11)) * 2.0**-53).tolist()


def rectangles(smallest, largest, aspect, numbers):
    """Yields rectangles of a uniform area and a log-uniform aspect ratio, as Szegedy et al. 2015 draw them.

    Args:
        smallest (float): Area.
        largest (float): Likewise.
        aspect (pair of float): Smallest and largest ratio of the first side to the second.
        numbers: In [0, 1), four a rectangle: area, aspect ratio, and two for its place.

    Yields:
        tuple: Both sides, rounded, and the two numbers for its place.
    """
    low, high = map(math.log, aspect)
    numbers = iter(numbers)
    for size, shape, *place in zip(numbers, numbers, numbers, numbers, strict=True):
        area, ratio = smallest + (largest - smallest) * size, math.exp(low + (high - low) * shape)
        yield round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio)), *place

"""Random numbers of a position in an epoch: the same in any process, at any time, independent of earlier draws."""

import math

CROP = 0


def uniforms(count, spec, epoch, purpose, position, copy=0):
    """Returns numbers in [0, 1).

    Args:
        count (int): Number of numbers.
        spec (BatchSpec): Its seed is used.
        epoch (int): Number of the epoch.
        purpose (int): Counter of Philox that nothing else uses: ``CROP``, or the counter of an augmentation; 1 belongs
            to :mod:`mixprec.data.mixing`, whose keys are the same.
        position (int): Position in the order of the epoch; for crops the index of the image.
        copy (int): For crops, the number of the copy of the image in the epoch.

    Returns:
        list of float: Numbers with 53 random bits each.
    """
    import numpy as np  # not at the top: configs are checked without it

    # Philox is a function of key and counter (Salmon et al. 2011), and its bits are the same in all versions of NumPy.
    bits = np.random.Philox(key=[spec.seed, epoch], counter=[0, copy, purpose, position]).random_raw(count)
    return ((bits >> np.uint64(11)) * 2.0**-53).tolist()


def rectangles(smallest, largest, aspect, numbers):
    """Yields rectangles of a uniform area and a log-uniform aspect ratio, as Szegedy et al. 2015 draw them.

    Args:
        smallest (float): Smallest area.
        largest (float): Largest area.
        aspect (pair of float): Smallest and largest ratio of the first side to the second.
        numbers: Numbers in [0, 1), four a rectangle: area, aspect ratio, and two for its position.

    Yields:
        tuple: Both sides, rounded, and the two numbers for its position.
    """
    low, high = map(math.log, aspect)
    numbers = iter(numbers)
    for size, shape, *position in zip(numbers, numbers, numbers, numbers, strict=True):
        area, ratio = smallest + (largest - smallest) * size, math.exp(low + (high - low) * shape)
        yield round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio)), *position

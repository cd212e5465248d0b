"""Arithmetic on pixels in DALI's graph, on the CPU or on a GPU, shared by the operations of augmentation.

Of DALI's own policies (``nvidia.dali.auto_aug``) only the choice between operations is used, as its operations differ.
"""

import numpy as np

_GRAY = (19595 / 65536, 38470 / 65536, 7471 / 65536)  # as Pillow converts RGB to L


class DaliArithmetic:
    """DALI's functions, and functions composed of them.

    Args:
        dali (module): ``nvidia.dali``.
        size (int): Height and width of the images.

    Attributes:
        fn (module): ``nvidia.dali.fn``.
        types (module): ``nvidia.dali.types``.
        floor (callable): Rounds down.
        size (int): As above.
    """

    def __init__(self, dali, size):
        self.fn, self.types, self.floor, self.size = dali.fn, dali.types, dali.math.floor, size

    def wide(self, pixels):
        """Returns pixels as float32."""
        return self.fn.cast(pixels, dtype=self.types.FLOAT)

    def levels(self, wide):
        """Returns float32 numbers as uint8: rounded down, and from 0 to 255."""
        return self.fn.cast(self.floor(wide), dtype=self.types.UINT8)  # which saturates

    def gray(self, pixels):
        """Returns the gray level of each pixel, float32 (H, W, 1)."""
        weighted = self.wide(pixels) * self.constant(pixels, np.float32(_GRAY))
        return self.floor(self.fn.reductions.sum(weighted, axes=[2], keep_dims=True) + 0.5)

    def over(self, reduction, wide):
        """Returns a reduction over the pixels of each channel."""
        return reduction(wide, axes=[0, 1], keep_dims=True)

    def white(self, pixels):
        """Returns the highest level as a constant beside the pixels."""
        return self.constant(pixels, np.uint8(255))

    def constant(self, pixels, array):
        """Returns an array as a constant beside the pixels."""
        return self.types.Constant(array, device=pixels.device)

    def beside(self, pixels, number):
        """Returns a number on the device of the pixels."""
        return number.gpu() if pixels.device == "gpu" else number

"""Biases of arrays (N, C, *spatial) on a CUDA device: one launch."""

from mixprec.backends.nchw.planes import Planes


class PlaneBiases(Planes):
    """The biases of ``cupy.cudnn``."""

    def add_bias(self, y, b):
        """Adds a bias in place, each element rounded once; nothing is launched for an empty array.

        Args:
            y: (N, C, *spatial), C-contiguous, in a storage dtype.
            b: (C,), in the same dtype.
        """
        self._run_planes("add_bias", self._tiling([y], writes=True), [y, b], [])

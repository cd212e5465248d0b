"""Poolings of planes on a CUDA device: one launch each."""

import math

from mixprec.backends.cuda.base import Base, ceil_div

_FILE = "pooling_planes"
# The name of a kernel, and whether it divides by whole windows.
_KERNELS = {
    "max": ("max_of_planes", []),
    "average": ("average_of_planes", [1]),
    "average_without_padding": ("average_of_planes", [0]),
}
_GROUP = 2**30  # elements that are numbered with 32 bits
_LARGEST_PLANE = 2**31 - 1


class PlanePoolings(Base):
    """Poolings of arrays (N, C, *spatial) of two or three spatial axes, C-contiguous and of one storage dtype.

    The kind is one of

    - ``"max"``: the largest element, of none -inf; NaN if there is one.
    - ``"average"``: of all elements of the window, of which those outside of the array are 0.
    - ``"average_without_padding"``: of the elements that exist; of none NaN.

    ``window``, ``stride`` and ``pad`` have an int for each spatial axis. Window ``i`` begins at element ``i * stride -
    pad``. The shape of y determines their number: windows may reach beyond the padding.
    """

    def pool(self, x, y, kind, window, stride, pad):
        """Computes a pooling.

        Args:
            x: (N, C, *spatial).
            y: (N, C, *outputs), which is overwritten.
            kind: see above.
            window: elements of a window.
            stride: steps between two windows.
            pad: elements before the first and after the last.

        Raises:
            ValueError: a plane of ``x`` or ``y`` has 2**31 elements or more.
        """
        name, how = _KERNELS[kind]
        self._launch_planes(name, [x, y], how, x, y, (window, stride, pad), written=y)

    def pool_backward(self, x, y, dy, kind, window, stride, pad):
        """Returns the gradient of a pooling; a maximum's goes to the first of equal elements, in row-major order.

        Args:
            x: (N, C, *spatial); for an average only its shape counts.
            y: (N, C, *outputs), the result of :meth:`pool`; only used for a maximum.
            dy: gradient of the output, like ``y``.
            kind: as it was forward, as the others are.
            window: elements of a window.
            stride: steps between two windows.
            pad: elements before the first one and behind the last one.

        Returns:
            dx, like ``x``.

        Raises:
            ValueError: a plane of ``x`` or ``y`` has 2**31 elements or more.
        """
        name, how = _KERNELS[kind]
        dx = self._empty(x.shape, x.dtype)
        arrays = [x, y, dy, dx] if kind == "max" else [dy, dx]
        self._launch_planes(f"{name}_backward", arrays, how, x, dy, (window, stride, pad), written=x)
        return dx

    def _launch_planes(self, name, arrays, how, x, y, windows, written):
        """Launches a kernel with a thread for each element of an array like ``written``."""
        threads, planes, size = self.launcher.threads, math.prod(x.shape[:2]), math.prod(written.shape[2:])
        largest = max(math.prod(array.shape[2:]) for array in (x, y))
        if largest > _LARGEST_PLANE:
            raise ValueError(f"pooling of planes of {largest} elements: they may have 2**31 - 1")
        if not planes * size:
            return
        groups = ceil_div(planes, max(_GROUP // size, 1))
        planes_of_group = ceil_div(planes, groups)
        blocks_of_group = ceil_div(planes_of_group * size, threads)
        axes = list(zip(x.shape[2:], y.shape[2:], *windows, strict=True))
        axes = [(1, 1, 1, 1, 0)] * (3 - len(axes)) + axes
        arguments = [*map(self._address, arrays), *how, planes, planes_of_group, blocks_of_group]
        arguments += [number for axis in axes for number in axis]
        self.kernels.launch(_FILE, name, groups * blocks_of_group, arguments, arrays[0].dtype)

"""K-FAC's data for a layer: second moments, their moving averages, and the inverses of the averages.

The Fisher matrix of a layer is approximated by a Kronecker product of the second moment A of its inputs and the second
moment G of the gradients of its outputs (Martens and Grosse 2015, arXiv:1503.05671, section 3; for convolutions Grosse
and Martens 2016, arXiv:1602.01407, section 3). It is the "empirical" Fisher matrix, with the labels of the batch, as in
all implementations that train large networks. With n images, a loss that is the mean over them, T positions of the
output for each, input patches p of the filter (with a 1 for the bias) and gradients g of that loss:

    A = sum of p p^T / n             G = n^2 * sum of g g^T / (n * T)

If a layer is used several times in a backward pass, the positions of all uses count.

For a batch normalization the Fisher matrix is approximated by a 2 x 2 matrix for each channel ("unit-wise", Osawa et
al. 2020, arXiv:2002.06015, section 4.2).

A layer computes the averages and inverses of a step in separate arrays; :meth:`Layer.keep` makes them current if the
step is not skipped. On a device nothing is read.
"""

import abc
import math

import numpy as np
from chainer import backend

from mixprec.backends.transfers import on_host
from mixprec.kfac.device_numbers import filled


class Layer(abc.ABC):
    """One layer.

    Args:
        names: names of its parameters, as in ``namedparams`` of the model.
        shapes: shapes of its second moments.
        like: array of a parameter: all arrays are on its device.

    Attributes:
        names: names of its parameters.
        sums: second moments, float32 arrays: sums over the batch; after :meth:`average` the new averages.
        counts: float32 array (2,): numbers of images, and of positions of the output in all of them.
        averages: float32 arrays like ``sums``, moving averages over steps.
        inverses: float32 arrays like ``sums``, from the last step that computed inverses.
        new_inverses: float32 arrays like ``sums``, from the current step.
        steps: int64 array of shape (): number of steps in the averages.
        has_inverses: whether a step has computed inverses.
    """

    def __init__(self, names, shapes, like):
        self.names = names
        arrays = [[filled(shape, 0, np.float32, like) for shape in shapes] for _ in range(4)]
        self.sums, self.averages, self.inverses, self.new_inverses = arrays
        self.has_inverses = False
        self.counts = filled((2,), 0, np.float32, like)
        self.steps = filled((), 0, np.int64, like)

    @property
    def xp(self):
        """The array module."""
        return backend.get_array_module(self.counts)

    @property
    def moved(self):
        """List of the current arrays, which a step changes."""
        return [*self.averages, *self.inverses, self.steps]

    @property
    def arrays(self):
        """All arrays, a list."""
        return [*self.sums, *self.averages, *self.inverses, *self.new_inverses, self.counts, self.steps]

    def to_device(self, device):
        """Moves all arrays to a device if necessary."""
        if backend.get_device_from_array(self.counts) != device:
            for name in ("sums", "averages", "inverses", "new_inverses"):
                setattr(self, name, list(map(device.send, getattr(self, name))))
            self.counts, self.steps = device.send(self.counts), device.send(self.steps)

    def begin(self):
        """Resets the sums for a step."""
        for array in (*self.sums, self.counts):
            array.fill(0)

    def average(self, decay, unscale):
        """Turns the sums of a step into the new averages.

        Args:
            decay: decay of the averages; the first average is the second moment of its step.
            unscale: float32 array of shape (): 1 / the square of the factor on the gradients.
        """
        xp = self.xp
        images, positions = xp.maximum(self.counts, np.float32(1))
        weight = xp.where(self.steps > 0, np.float32(1 - decay), np.float32(1))
        weight = xp.where(self.counts[0] > 0, weight, np.float32(0))  # a layer without a gradient keeps its averages
        for sums, average, factor in zip(
            self.sums, self.averages, self._factors(images, positions, unscale), strict=True
        ):
            sums *= factor
            sums -= average
            sums *= weight
            sums += average

    def keep(self, skip, inverses):
        """Makes the computed arrays current, unless the step is skipped.

        Args:
            skip: a bool, or a boolean array of shape () on the device.
            inverses: whether there are new inverses.
        """
        if not inverses:  # with inverses, gradients are NaN in this case, and the step is skipped
            skip = skip | ~self._fits()
        if on_host(skip):
            if not skip:
                self.averages, self.sums = self.sums, self.averages
                if inverses:
                    self.inverses, self.new_inverses = self.new_inverses, self.inverses
                self.steps += self.counts[0] > 0
            return
        pairs = list(zip(self.averages, self.sums, strict=True))
        if inverses:
            pairs += zip(self.inverses, self.new_inverses, strict=True)
        for old, new in pairs:
            self.xp.copyto(old, new, where=~skip)
        self.steps += ~skip & (self.counts[0] > 0)

    def _fits(self):
        """Returns whether the second moments of a step are finite in float32, an array of shape ()."""
        diagonals = [array.trace(axis1=1, axis2=2) if array.ndim == 3 else array for array in self.sums]
        with np.errstate(over="ignore", invalid="ignore"):
            return self.xp.isfinite(sum(diagonal.sum() for diagonal in diagonals))

    @abc.abstractmethod
    def _factors(self, images, positions, unscale):
        """Returns the factors on the sums of a step."""

    @abc.abstractmethod
    def invert(self, primitives, damping):
        """Computes :attr:`new_inverses` of the matrices plus ``damping``, a float32 array of shape ()."""

    @abc.abstractmethod
    def suits(self, arrays):
        """Whether the parameters' arrays match the layer; the names may belong to other parameters now."""

    @abc.abstractmethod
    def precondition(self, primitives, gradients, inverses, scale):
        """Multiplies gradients by inverses, in place.

        Args:
            primitives: :class:`~mixprec.backends.primitives.Primitives` of the device.
            gradients: float32 arrays, the unscaled gradients of the parameters.
            inverses: :attr:`inverses` or :attr:`new_inverses`.
            scale: whether to return the sum of the products of gradients before and after.

        Returns:
            A float32 array of shape (), or ``None``.
        """


class FilterLayer(Layer):
    """A convolution or a linear layer: A and G for each group of channels.

    Args:
        names: names of W, and of the bias if there is one.
        w_shape: (K, R, S, C / groups).
        groups: number of groups.
        like: as for :class:`Layer`.
    """

    def __init__(self, names, w_shape, groups, like):
        self._filters, self._elements = w_shape[0], math.prod(w_shape[1:])
        self._filter_size, self.groups = tuple(w_shape[1:3]), groups
        super().__init__(names, [(groups, size, size) for size in self.sizes(names, w_shape, groups)], like)

    @staticmethod
    def sizes(names, w_shape, groups):
        """Returns the numbers of rows of the two matrices of a layer."""
        return math.prod(w_shape[1:]) + len(names) - 1, w_shape[0] // groups

    def fits(self, w_shape, groups):
        """Whether a use of the filters is like the first one, for which the layer was made."""
        return (self._filters, self._filter_size, self.groups) == (w_shape[0], tuple(w_shape[1:3]), groups)

    @property
    def description(self):
        """Data to make the same layer again: its kind, and its arguments except ``like``."""
        shape = [self._filters, *self._filter_size, self._elements // (self._filter_size[0] * self._filter_size[1])]
        return {"kind": "filters", "names": self.names, "w_shape": shape, "groups": self.groups}

    def suits(self, arrays):
        """See :meth:`Layer.suits`."""
        sizes = [self._filters * self._elements, self._filters]
        return [array.size for array in arrays] == sizes[: len(self.names)]

    @property
    def costs(self):
        """The costs of the two inverses, in multiplications."""
        return [self.groups * array.shape[1] ** 3 for array in self.sums]

    def add(self, primitives, x, dy, convolution, *, is_first):
        """Adds the second moments of a use of the layer.

        Args:
            primitives: :class:`~mixprec.backends.primitives.Primitives` of the device.
            x, dy, convolution: see :meth:`~mixprec.functions.layer_gradients.Observer.filters`.
            is_first: whether it is the first use in its backward pass: others have the same images.
        """
        bias = len(self.names) > 1
        primitives.patch_moments(x, convolution, self._filter_size, self.sums[0], bias=bias)
        primitives.row_moments(dy, self.sums[1])
        if is_first:
            self.counts[0] += len(x)
        self.counts[1] += dy.size // self._filters

    def _factors(self, images, positions, unscale):
        return 1 / images, images * images / positions * unscale

    def invert(self, primitives, damping, parts=(0, 1)):
        """See :meth:`Layer.invert`; divides the damping between both by their traces (Martens and Grosse, section 6.3).

        Args:
            primitives, damping: as for :meth:`Layer.invert`.
            parts: which of the two to invert; the other inverse becomes zeros.
        """
        xp = self.xp
        means = [array.trace(axis1=1, axis2=2) / np.float32(array.shape[1]) for array in self.sums]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = means[0] / means[1]
        ratio = xp.sqrt(xp.where((ratio > 0) & xp.isfinite(ratio), ratio, np.float32(1)))
        root = xp.sqrt(damping)
        for part, shift in enumerate((ratio * root, root / ratio)):
            if part in parts:
                primitives.inverses(self.sums[part], shift, self.new_inverses[part])
            else:
                self.new_inverses[part].fill(0)

    def precondition(self, primitives, gradients, inverses, scale):
        """See :meth:`Layer.precondition`."""
        xp, (weights, *bias) = self.xp, gradients
        rows = weights.transpose(0, 2, 3, 1) if weights.ndim == 4 else weights
        shape = self.groups, self._filters // self.groups, self._elements
        matrix = rows.reshape(shape)
        if bias:
            matrix = xp.concatenate([matrix, bias[0].reshape(*shape[:2], 1)], axis=2)
        matrix = xp.ascontiguousarray(matrix)
        result = primitives.products(primitives.products(inverses[1], matrix), inverses[0])
        product = (matrix * result).sum() if scale else None
        rows[...] = result[:, :, : self._elements].reshape(rows.shape)
        if bias:
            bias[0][...] = result[:, :, -1].reshape(-1)
        return product


class ScaleLayer(Layer):
    """A batch normalization: squares and products of the gradients of gamma and beta.

    Args:
        names: names of gamma and beta.
        channels: number of channels.
        like: as for :class:`Layer`.
    """

    def __init__(self, names, channels, like):
        super().__init__(names, [(3, channels)], like)

    @property
    def description(self):
        """See :attr:`FilterLayer.description`."""
        return {"kind": "scales", "names": self.names, "channels": self.sums[0].shape[1]}

    def add(self, primitives, x, dy, arrays, saved, relu, *, is_first):
        """Adds the second moments of a use of the layer.

        Args:
            primitives, is_first: see :meth:`FilterLayer.add`.
            x, dy, arrays, saved, relu: see :meth:`~mixprec.functions.layer_gradients.Observer.scales`.
        """
        primitives.scale_moments(dy, x, *arrays, saved, self.sums[0], relu=relu)
        if is_first:
            self.counts[0] += len(x)
        self.counts[1] += len(x)

    def _factors(self, images, positions, unscale):
        return (images * unscale,)

    def suits(self, arrays):
        """See :meth:`Layer.suits`."""
        return [array.size for array in arrays] == [self.sums[0].shape[1]] * 2

    def invert(self, primitives, damping):
        """See :meth:`Layer.invert`.

        For the gradients of a single image the matrix has determinant 0; the damped determinant is computed without the
        rounding error of this 0.
        """
        gamma, both, beta = self.sums[0]
        zero = np.float32(0)
        determinant = damping * (gamma + beta + damping) + self.xp.maximum(gamma * beta - both * both, zero)
        (inverse,) = self.new_inverses
        inverse[0], inverse[1] = (beta + damping) / determinant, -both / determinant
        inverse[2] = (gamma + damping) / determinant

    def precondition(self, primitives, gradients, inverses, scale):
        """See :meth:`Layer.precondition`."""
        dgamma, dbeta = gradients
        on_gamma, both, on_beta = inverses[0]
        results = on_gamma * dgamma + both * dbeta, both * dgamma + on_beta * dbeta
        product = (results[0] * dgamma).sum() + (results[1] * dbeta).sum() if scale else None
        dgamma[...], dbeta[...] = results
        return product

"""Convolutions of plain Chainer: by cuDNN, with any number of axes in space, into arrays that Chainer has made."""

import functools

from mixprec.backends.cuda.candidates import Candidates
from mixprec.backends.cuda.operations import geometry, operation
from mixprec.backends.cudnn.operation import Tensor
from mixprec.backends.nchw.bias import PlaneBiases


class PlaneConvolutions(PlaneBiases, Candidates):
    """The three convolutions. Images x and y are (N, C, ...), filters w (K, C / groups, ...), all of one storage dtype.

    With ``layout="NHWC"``, two axes in space only, they are (N, H, W, C) and (K, R, S, C / groups). Geometries are
    :class:`~mixprec.backends.geometry.Convolution`, with as many elements as there are axes in space.

    Empty batches are handled without cuDNN, which has no plans for them.

    Raises:
        NoEngine: cuDNN cannot do it; nothing was written.
    """

    def conv_fprop(self, x, w, b, y, convolution, layout="NCHW"):
        """Writes the convolution of ``x`` into ``y``; ``b`` is (K,) or ``None``."""
        if not y.size:
            return
        bias = None if b is None else b.dtype
        key = "plain conv_fprop", x.shape, w.shape, y.shape, x.dtype, convolution, bias, layout
        arguments = x, w, b, y
        self._choose(key, self._fprop_candidates, arguments)(*arguments)

    def conv_dgrad(self, dy, w, b, dx, convolution, layout="NCHW"):
        """Writes the gradient with respect to the images into ``dx``, plus ``b`` (C,) if that is not ``None``.

        In other words, the transposed convolution of ``dy``.
        """
        if not dx.size:
            return
        key = "plain conv_dgrad", dy.shape, w.shape, dx.shape, dy.dtype, convolution, layout
        arguments = dy, w, dx
        candidates = functools.partial(self._gradient_candidates, "conv_dgrad", ("dy", "w", "dx"))
        self._choose(key, candidates, arguments)(*arguments)
        if b is not None:
            self._add(dx, b, layout)

    def conv_wgrad(self, x, dy, dw, convolution, layout="NCHW"):
        """Writes the gradient with respect to the filters into ``dw``."""
        if not dy.size:
            self.launcher.zero(dw)
            return
        key = "plain conv_wgrad", x.shape, dy.shape, dw.shape, x.dtype, convolution, layout
        arguments = x, dy, dw
        candidates = functools.partial(self._gradient_candidates, "conv_wgrad", ("x", "dy", "dw"))
        self._choose(key, candidates, arguments)(*arguments)

    def _fprop_candidates(self, x_shape, w_shape, y_shape, dtype, convolution, bias, layout):
        cudnn, found = self._cudnn(), False
        tensor = _tensors(dtype, layout)
        for fused in (False,) if bias is None else (True, False):
            inputs = [tensor("x", x_shape), tensor("w", w_shape)]
            if fused:
                inputs.append(Tensor("b", w_shape[:1], bias.name, layout))
            asked = operation("conv_fprop", inputs, [tensor("y", y_shape)], relu=False, **geometry(convolution))
            if cudnn.supports(asked):
                found = True
                yield "conv+bias" if fused else "conv", self._fprop_function(cudnn.plan(asked), fused, layout)
        if not found:
            cudnn.plan(asked)  # raises NoEngine

    def _fprop_function(self, plan, fused, layout):
        def run(x, w, b, y):
            plan.run(*map(self._address, [x, w, b, y] if fused else [x, w, y]))
            if b is not None and not fused:
                self._add(y, b, layout)

        return run

    def _gradient_candidates(self, kind, names, *key):
        *shapes, dtype, convolution, layout = key
        *inputs, output = map(_tensors(dtype, layout), names, shapes)
        plan = self._cudnn().plan(operation(kind, inputs, [output], **geometry(convolution)))
        yield "conv", (lambda *arrays: plan.run(*map(self._address, arrays)))

    def _add(self, images, b, layout):
        """Adds ``b`` in place: an image (N, H, W, C) is a batch of pixels, planes of one element."""
        images = images.reshape(-1, images.shape[-1], 1) if layout == "NHWC" else images
        self.add_bias(images, b if b.dtype == images.dtype else b.astype(images.dtype))


def _tensors(dtype, layout):
    return functools.partial(Tensor, dtype=dtype.name, layout=layout)

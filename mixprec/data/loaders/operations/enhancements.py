"""Brightness, color, contrast and sharpness: a blend of an image with a version that lacks the property."""

from typing import ClassVar

from mixprec.data.loaders.operations.image_operation import LAST_BIN, Operation

_SMOOTH = ((1, 1, 1), (1, 5, 1), (1, 1, 1))  # PIL.ImageFilter.SMOOTH, the sum being 13


class _Enhancement(Operation):
    strongest: ClassVar = {"rand": 0.9, "trivial": 0.99}  # the distance of the factor from 1

    def value(self, policy, number, sign, size):
        return 1 + sign * self.strongest[policy] * number / LAST_BIN

    def pillow(self, image, value):
        from PIL import ImageEnhance

        return getattr(ImageEnhance, self.name.capitalize())(image).enhance(value)


class _Brightness(_Enhancement):
    name = "brightness"

    def dali(self, graph, pixels, matrix, number):
        return graph.levels(graph.wide(pixels) * graph.beside(pixels, number))


class _Color(_Enhancement):
    name = "color"

    def dali(self, graph, pixels, matrix, number):
        return _blend(graph, graph.gray(pixels), pixels, number)


class _Contrast(_Enhancement):
    name = "contrast"

    def dali(self, graph, pixels, matrix, number):
        mean = graph.fn.reductions.mean(graph.gray(pixels), axes=[0, 1, 2], keep_dims=True)
        return _blend(graph, graph.floor(mean + 0.5), pixels, number)


class _Sharpness(_Enhancement):
    name = "sharpness"

    def dali(self, graph, pixels, matrix, number):
        import numpy as np

        smooth = graph.fn.filter(pixels, graph.constant(pixels, np.float32(_SMOOTH) / 13))
        inner = np.zeros((graph.size, graph.size, 1), np.uint8)
        inner[1:-1, 1:-1] = 1  # Pillow leaves the border as it is
        inner, border = graph.constant(pixels, inner), graph.constant(pixels, 1 - inner)
        return _blend(graph, graph.wide(smooth * inner + pixels * border), pixels, number)


def _blend(graph, none, pixels, factor):
    """Blends pixels with the image for factor 0; the factor is the weight of the pixels."""
    return graph.levels(none + graph.beside(pixels, factor) * (graph.wide(pixels) - none))


OPERATIONS = (_Brightness(), _Color(), _Contrast(), _Sharpness())

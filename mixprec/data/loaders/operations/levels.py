"""Posterizing, solarizing and inverting: a fixed map of the levels of a channel."""

from typing import ClassVar

from mixprec.data.loaders.operations.image_operation import LAST_BIN, OfImageOps


class _Posterize(OfImageOps):
    """Its value is the number of bits that are kept."""

    name = "posterize"
    strongest: ClassVar = {"rand": 4, "trivial": 6}  # bits that are lost

    def value(self, policy, number, sign, size):
        return round(8 - self.strongest[policy] * number / LAST_BIN)

    def dali(self, graph, pixels, matrix, number):
        unit = graph.fn.cast(2 ** (8 - graph.beside(pixels, number)), dtype=graph.types.UINT8)
        return pixels // unit * unit


class _Solarize(OfImageOps):
    """Its value is the threshold from which levels are inverted."""

    name = "solarize"

    def value(self, policy, number, sign, size):
        return 255 * (LAST_BIN - number) / LAST_BIN

    def dali(self, graph, pixels, matrix, number):
        is_dark = graph.wide(pixels) < graph.beside(pixels, number)
        return is_dark * pixels + (is_dark ^ True) * (graph.white(pixels) - pixels)


class _Invert(OfImageOps):
    name = "invert"
    is_extra = True

    def dali(self, graph, pixels, matrix, number):
        return graph.white(pixels) - pixels


OPERATIONS = (_Posterize(), _Solarize(), _Invert())

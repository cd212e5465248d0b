"""Maps of the levels of a channel: fixed ones, and two by the histogram of the image."""

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


class _AutoContrast(OfImageOps):
    name = "auto_contrast"

    def dali(self, graph, pixels, matrix, number):
        wide = graph.wide(pixels)
        low, high = graph.over(graph.fn.reductions.min, wide), graph.over(graph.fn.reductions.max, wide)
        is_flat = high <= low
        scaled = (wide - low) * (255 / (high - low + is_flat))
        return graph.levels(is_flat * wide + (is_flat ^ True) * scaled)


class _Equalize(OfImageOps):
    name = "equalize"

    def dali(self, graph, pixels, matrix, number):
        # OpenCV's formula, which DALI has, leaves out the lowest level; Pillow's leaves out the highest one, and rounds
        # the number of pixels for a level down. Of inverted colours the former tells how many pixels are darker.
        wide, white = graph.wide(pixels), graph.white(pixels)
        is_highest = wide == graph.over(graph.fn.reductions.max, wide)
        lower = graph.size**2 - graph.over(graph.fn.reductions.sum, graph.wide(is_highest))
        darker = (255 - graph.wide(graph.fn.equalize(white - pixels))) * lower / 255
        step = graph.floor(lower / 255)
        is_kept = step < 1
        equalized = darker / (step + is_kept) + 0.5
        return graph.levels(is_kept * wide + (is_kept ^ True) * equalized)


OPERATIONS = (_Posterize(), _Solarize(), _Invert(), _AutoContrast(), _Equalize())

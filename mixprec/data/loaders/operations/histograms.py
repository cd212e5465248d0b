"""Stretching and equalizing the levels of each channel, by its histogram in the image."""

from mixprec.data.loaders.operations.image_operation import OfImageOps


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


OPERATIONS = (_AutoContrast(), _Equalize())

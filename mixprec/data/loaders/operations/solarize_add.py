"""SolarizeAdd: the darker half of the levels gets lighter, as in timm (Wightman 2019)."""

from mixprec.data.loaders.operations.image_operation import LAST_BIN, Operation

_FIRST_LEFT, _MOST = 128, 110


class _SolarizeAdd(Operation):
    """Its value is the number that is added to levels below 128."""

    name = "solarize_add"
    is_extra = True

    def value(self, policy, number, sign, size):
        return _MOST * number // LAST_BIN

    def pillow(self, image, value):
        levels = [level + value if level < _FIRST_LEFT else level for level in range(256)]
        return image.point(levels * len(image.getbands()))

    def dali(self, graph, pixels, matrix, number):
        wide = graph.wide(pixels)
        return graph.levels(wide + (wide < _FIRST_LEFT) * graph.beside(pixels, number))


OPERATIONS = (_SolarizeAdd(),)

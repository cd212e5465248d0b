"""The base of operations: magnitudes, and the same operation by Pillow and by DALI."""

from typing import ClassVar

LAST_BIN = 30


class Operation:
    """An operation on an image. The base class leaves it as it is.

    Attributes:
        name (str): The name.
        kind (str): The name, or a shared name of operations that treat a value in the same way; DALI joins these.
        is_extra (bool): Whether it is drawn only where it is named.
        strongest (dict): Magnitude of the last bin by policy; 0 for none.
    """

    name = "identity"
    is_extra = False
    strongest: ClassVar = {}

    @property
    def kind(self):
        return self.name

    def value(self, policy, number, sign, size):
        """Returns the parameter of the operation.

        Args:
            policy (str): ``'rand'`` or ``'trivial'``.
            number (int): The bin of the magnitude, 0 to 30.
            sign (int): 1 or -1, for operations that have two directions.
            size (int): Height and width of the image.

        Returns:
            A number; or six, of a matrix; or None.
        """
        return

    def row(self, value):
        """Returns the value as seven numbers for :meth:`dali`: one, and the six of a matrix."""
        return (value or 0, 0, 0, 0, 0, 0, 0)

    def pillow(self, image, value):
        """Applies the operation by Pillow to an image in RGB; returns one of the same size."""
        return image

    def dali(self, graph, pixels, matrix, number):
        """Adds the operation to DALI's graph.

        Args:
            graph (DaliArithmetic): DALI's functions, and functions composed of them.
            pixels (DataNode): uint8 (size, size, 3), RGB.
            matrix (DataNode): Matrix from :meth:`row`, (2, 3), on the CPU.
            number (DataNode): Number from :meth:`row`, on the CPU.

        Returns:
            DataNode: As ``pixels``. Colours equal Pillow's within one level.
        """
        return pixels


class OfImageOps(Operation):
    """An operation of Pillow with the same name."""

    def pillow(self, image, value):
        from PIL import ImageOps

        return getattr(ImageOps, self.name.replace("_", ""))(image, *(() if value is None else (value,)))


OPERATIONS = (Operation(),)

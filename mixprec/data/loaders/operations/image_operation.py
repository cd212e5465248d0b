"""What an operation consists of: magnitudes, and the same thing done by Pillow and by DALI."""

from typing import ClassVar

LAST_BIN = 30


class Operation:
    """An operation on an image. This one leaves it as it is.

    Attributes:
        name (str): The name.
        kind (str): The name, or what operations have in common that do the same with a value; DALI takes these at once.
        is_extra (bool): Whether it is drawn only where it is named.
        strongest (dict): By policy, what the last bin means; 0 is none.
    """

    name = "identity"
    is_extra = False
    strongest: ClassVar = {}

    @property
    def kind(self):
        return self.name

    def value(self, policy, number, sign, size):
        """Returns what is done in numbers.

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
        """Returns the value as seven numbers for :meth:`dali`: one, and those of a matrix."""
        return (value or 0, 0, 0, 0, 0, 0, 0)

    def pillow(self, image, value):
        """Returns what Pillow makes of an image in RGB, of the same size."""
        return image

    def dali(self, graph, pixels, matrix, number):
        """Adds the operation to DALI's graph.

        Args:
            graph (DaliArithmetic): DALI's functions, and what is made of them.
            pixels (DataNode): uint8 (size, size, 3), RGB.
            matrix (DataNode): Of :meth:`row`, (2, 3), on the CPU.
            number (DataNode): Likewise.

        Returns:
            DataNode: As ``pixels``. Colours are those of Pillow within one level.
        """
        return pixels


class OfImageOps(Operation):
    """An operation that Pillow has under the same name."""

    def pillow(self, image, value):
        from PIL import ImageOps

        return getattr(ImageOps, self.name.replace("_", ""))(image, *(() if value is None else (value,)))


OPERATIONS = (Operation(),)

"""Addition of two arrays."""

from mixprec.functions import checks
from mixprec.functions.node import Node


class Addition(Node):
    """The sum of two arrays in one storage dtype, in float32 and rounded once."""

    name = "add"
    is_repeatable = True
    image_inputs = (0, 1)

    def check(self, x, other):
        checks.dtype(self.name, "x", x)
        checks.like(self.name, "other", other, "x", x)

    def compute(self, primitives, x, other):
        return (primitives.add(x, other),)

    def gradients(self, primitives, indexes, dy):
        return dy, dy

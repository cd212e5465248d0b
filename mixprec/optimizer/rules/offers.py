"""The optimizers that a config can name, each declared in the file of its rule.

:mod:`~mixprec.optimizer.rules.generate` writes them into ``mixprec/base/optimizer_names.py``, which can be imported
without Chainer.
"""

import dataclasses

OFFERS = {}  # each Offer by its name, in the order of the files


@dataclasses.dataclass(frozen=True)
class Offer:
    """An optimizer that a config can name.

    Attributes:
        name: name of its class in ``chainer.optimizers`` or ``mixprec``.
        module: module of this package that has the class; ``None`` for Chainer's optimizers.
        rate: name of its learning rate.
        decay: name of the weight decay in its formula, or ``None``.
        keys: other arguments that are keys in YAML.
        fixed: arguments that are the same in all configs.
        is_decoupled: whether ``decay`` multiplies the parameter, in proportion to the learning rate.
        has_average: whether models are evaluated at an average of their weights.
    """

    name: str
    module: str | None = None
    rate: str = "lr"
    decay: str | None = None
    keys: tuple[str, ...] = ()
    fixed: dict[str, float] = dataclasses.field(default_factory=dict)
    is_decoupled: bool = False
    has_average: bool = False


def offer(name, **properties):
    """Declares an :class:`Offer`."""
    OFFERS[name] = Offer(name, **properties)

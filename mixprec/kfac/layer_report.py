"""A text report of the layers that K-FAC preconditions."""

from mixprec.kfac.layers import FilterLayer


def text(collector, index):
    """Returns a line about the preconditioned layers, and a line with the parameters whose gradients are not changed.

    Args:
        collector: :class:`~mixprec.kfac.collector.Collector`.
        index: :class:`~mixprec.optimizer.model_index.ModelIndex`, or ``None`` before there is a model.
    """
    layers = list(collector.layers.values())
    filters = [layer for layer in layers if isinstance(layer, FilterLayer)]
    size = max([array.shape[1] for layer in filters for array in layer.sums], default=0)
    line = (
        f"{len(layers)} layer{'' if len(layers) == 1 else 's'}: {len(filters)} by the moments of inputs and outputs, "
        f"{len(layers) - len(filters)} batch normalizations; the largest matrix is {size} x {size}"
    )
    taken, large = {name for layer in layers for name in layer.names}, collector.too_large
    namedparams = [] if index is None else index.namedparams
    known = {id(param) for name, param in namedparams if name in taken}  # some have several names
    others = [name for name, param in namedparams if id(param) not in known]
    if not others:
        return line
    named = [f"{name} (its matrix would have {large[name]} rows)" if name in large else name for name in others]
    return f"{line}\nnot preconditioned: {', '.join(named)}"

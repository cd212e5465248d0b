"""Multiplies the gradients of a step by inverses, with a limit on their size."""

import numpy as np
from chainer import backend


def learning(layers, by_name, takes_new):
    """Returns the layers whose gradients are multiplied in a step.

    Args:
        layers: list of :class:`~mixprec.kfac.layers.Layer`.
        by_name: ``{name: (name, parameter, master)}`` of the parameters with gradients.
        takes_new: whether the step computes inverses.

    Returns:
        list of ``(layer, [(name, parameter, master)])``.
    """
    return [
        (layer, [by_name[name] for name in layer.names])
        for layer in layers
        if (takes_new or layer.has_inverses) and _learns(layer, by_name)
    ]


def _learns(layer, by_name):
    """Whether the parameters of a layer still match it, and are updated."""
    if not all(name in by_name for name in layer.names):
        return False
    params = [by_name[name][1] for name in layer.names]
    rules = [param.update_rule for param in params]
    return layer.suits([param.array for param in params]) and any(rule is not None and rule.enabled for rule in rules)


def multiply(layers, primitives, numbers, takes_new):
    """Multiplies the gradients of masters by inverses, in place.

    Args:
        layers: from :func:`learning`.
        primitives: :class:`~mixprec.backends.primitives.Primitives` of the device.
        numbers: dict of float32 arrays of shape (); ``kl_clip`` and ``lr`` only if gradients are clipped.
        takes_new: whether to use the inverses of this step.
    """
    clips = "kl_clip" in numbers
    products = []
    for layer, parameters in layers:
        inverses = layer.new_inverses if takes_new else layer.inverses
        products.append(layer.precondition(primitives, [master.grad for _, _, master in parameters], inverses, clips))
    if clips:
        xp = backend.get_array_module(numbers["lr"])
        length = xp.maximum(numbers["lr"] * numbers["lr"] * sum(products), np.float32(0))  # below 0 by rounding only
        scale = xp.minimum(xp.sqrt(numbers["kl_clip"] / length), np.float32(1))
        for _, parameters in layers:
            for _, _, master in parameters:
                gradient = master.grad
                gradient *= scale

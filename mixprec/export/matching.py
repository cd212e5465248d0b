"""Matching of weights with the network that they are loaded into: names, shapes, dtypes, and the head.

Loading from a file and from a state dict both end here. Nothing is loaded before everything has been checked.
"""

from typing import NamedTuple

import numpy as np
from chainer import serializers

from mixprec.base.dtypes import BFLOAT16
from mixprec.export.export_error import WeightsError
from mixprec.export.torch_names import COUNT, torch_names


class Loaded(NamedTuple):
    """The result of loading weights into a network.

    Attributes:
        tensors (int): number of tensors.
        head (list of str): paths of links that stayed as they were, as the number of classes differs.
        classes (int): number of classes of the weights; ``None`` if there are no such links.
    """

    tensors: int
    head: list
    classes: int | None


def contents(network):
    """Returns the contents of a network's file: arrays of NumPy by Chainer's names, sorted."""
    serializer = serializers.DictionarySerializer()
    serializer.save(network)
    return dict(sorted(serializer.target.items()))  # Chainer's order differs between processes


def file_names(network, *, torch):
    """Returns the names of a network's weights in a file, of PyTorch or of Chainer, by Chainer's names."""
    names = contents(network)
    return torch_names(network, names) if torch else {name: name for name in names}


def load(network, state, names, classes=None):
    """Loads weights into a network: all of them, or none.

    Args:
        network: ``chainer.Link``.
        state: arrays of NumPy, or tensors of PyTorch, by their names in a file. The count of a batch normalization may
            be missing; then it stays as it is.
        names: from :func:`file_names`.
        classes (int): number of classes of the network. If it is given and the weights have another number, the head
            stays as it is. Without it, a different number is an error.

    Returns:
        Loaded

    Raises:
        WeightsError: the weights belong to another network, or are not floating-point numbers.
    """
    here = contents(network)
    _compare_names(network, here, state, names)
    found = {name: state[other] for name, other in names.items() if other in state}
    for name, value in found.items():
        if not hasattr(value, "shape"):
            raise WeightsError(f"{names[name]} is not a tensor")
    different = {name for name in found if _is_initialized(here[name]) and _shape(found[name]) != here[name].shape}
    head = _head(different, found, here, classes)
    others = {name for name in different if _link(name) not in head}  # of another network
    sizes = {_shape(found[name])[0] for name in different - others}
    if others or len(sizes) > 1:
        name = min(others or different)
        wanted = f"{type(network).__name__} here has {here[name].shape}"
        raise WeightsError(f"{names[name]} has shape {_shape(found[name])}; {wanted}")
    loaded = {name: _converted(names[name], found[name], here[name]) for name in found if _link(name) not in head}
    serializers.NpzDeserializer(here | loaded).load(network)
    return Loaded(len(loaded), [f"/{link}" for link in sorted(head)], sizes.pop() if sizes else None)


def _compare_names(network, here, state, names):
    missing = [name for name in names if names[name] not in state and not _is_count(name)]
    if missing:
        first = f"{names[missing[0]]} {_shown_shape(here[missing[0]])}"
        more = f" and {len(missing) - 1} more tensors" if len(missing) > 1 else ""
        raise WeightsError(f"lacks {first}{more}, which {type(network).__name__} here has: weights of another network")
    surplus = sorted(state.keys() - set(names.values()))
    if surplus:
        more = f" and {len(surplus) - 1} more tensors" if len(surplus) > 1 else ""
        lacks = f"which {type(network).__name__} here lacks: weights of another network"
        raise WeightsError(f"has {surplus[0]}{more}, {lacks}")


def _head(different, found, here, classes):
    """Returns the links whose parameters all differ in shape, by the number of classes only."""
    links = {_link(name) for name in different} if classes is not None else set()
    for name in found:
        there, wanted = _shape(found[name]), here[name].shape
        fits = there and wanted and there[1:] == wanted[1:] and there[0] != wanted[0] == classes
        if _is_initialized(here[name]) and not fits:  # Linear(None, classes) has no W yet
            links.discard(_link(name))
    return links


def _converted(name, value, here):
    """Returns an array or a tensor as float32, or as int64 where the network has an integer."""
    try:
        if hasattr(value, "detach"):  # of PyTorch; NumPy does not support its bfloat16
            value = value.detach().cpu()
            value = (value.float() if value.is_floating_point() and value.itemsize < 4 else value).numpy()
        kind = "f" if value.dtype == BFLOAT16 else value.dtype.kind
    except (AttributeError, TypeError, RuntimeError, NotImplementedError) as error:
        raise WeightsError(f"{name} is not a dense tensor of numbers") from error
    is_integer = here.dtype.kind in "iu"
    wanted, dtype, words = ("iu", np.int64, "integers") if is_integer else ("f", np.float32, "floating point")
    if kind not in wanted:
        raise WeightsError(f"{name} is {value.dtype}; wanted: {words}")
    with np.errstate(over="ignore"):
        converted = np.array(value, dtype)
    if np.isinf(converted).any() and not np.isinf(value).any():
        raise WeightsError(f"{name} has numbers in {value.dtype} that float32 does not hold")
    return converted


def _shape(value):
    return tuple(value.shape)  # torch.Size is another type


def _shown_shape(here):
    return here.shape if _is_initialized(here) else "of any shape"


def _link(name):
    return name.rpartition("/")[0]


def _is_count(name):
    return name.rpartition("/")[2] == COUNT


def _is_initialized(here):
    return here.dtype != object

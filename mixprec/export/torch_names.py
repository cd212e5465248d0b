"""The translation of names in a Chainer model's file to the names of a PyTorch module with the same structure.

``layer2/0/downsample/1/gamma`` is ``layer2.0.downsample.1.weight``. Children keep their names, and the last part is
translated. The order of axes is the same in both, except for depthwise convolutions, which are refused. One difference
is not in the names: Chainer's ``Sequential`` does not number its links in their order, but the first, the last, and
then backwards. PyTorch numbers all of its layers in their order.
"""

import chainer
import chainer.links as L

from mixprec.export.export_error import WeightsError

_LAST = {
    "W": "weight",
    "b": "bias",
    "gamma": "weight",
    "beta": "bias",
    "avg_mean": "running_mean",
    "avg_var": "running_var",
    "N": "num_batches_tracked",
}
COUNT = "N"  # a batch normalization's, which is an integer


def torch_names(network, names):
    """Translates names in the file of a network.

    Args:
        network: ``chainer.Link``.
        names: names that ``chainer.serializers`` gives to parameters and persistent values of the network.

    Returns:
        dict: PyTorch's names by Chainer's.

    Raises:
        WeightsError: PyTorch's layers do not have a parameter or a persistent value, or have its axes in another order.

    Example:
        >>> import chainer, chainer.functions as F, chainer.links as L
        >>> net = chainer.Sequential(L.Linear(4, 3), F.relu, L.Linear(3, 3), F.relu, L.Linear(3, 2, nobias=True))
        >>> [net[2].name, net[4].name]
        ['2', '1']
        >>> torch_names(net, ["2/W", "2/b", "1/W"])
        {'2/W': '2.weight', '2/b': '2.bias', '1/W': '4.weight'}
    """
    links = dict(_links(network, "", ""))
    found = {}
    for name in names:
        path, _, last = name.rpartition("/")
        if last not in _LAST or path not in links:
            raise WeightsError(f"{name} has no name in PyTorch; known last parts are {', '.join(_LAST)}")
        prefix, link = links[path]
        if isinstance(link, L.DepthwiseConvolution2D):
            wanted = "wanted: Convolution2D with groups"
            raise WeightsError(f"{name}: DepthwiseConvolution2D has its axes in another order than PyTorch; {wanted}")
        found[name] = f"{prefix}{_LAST[last]}"
    return found


def _links(link, path, prefix):
    """Yields the path of each link, and a pair of the prefix of its names in PyTorch and the link."""
    yield path, (prefix, link)
    for own, other, child in _children(link):
        yield from _links(child, f"{path}/{own}" if path else own, f"{prefix}{other}.")


def _children(link):
    """Yields Chainer's name, PyTorch's name and the link of each child."""
    if isinstance(link, chainer.Sequential):
        places = {}
        for place, layer in enumerate(link):
            places.setdefault(id(layer), []).append(place)
        for number, child in enumerate(link.children()):
            yield str(number), str(places[id(child)].pop(0)), child
    elif isinstance(link, chainer.ChainList):
        for number, child in enumerate(link.children()):
            yield str(number), str(number), child
    elif isinstance(link, chainer.Chain):
        for child in link.children():
            yield child.name, child.name, child

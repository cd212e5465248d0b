"""The windows of Chainer's pooling nodes, which name their numbers in two ways."""

from mixprec.backends.geometry import Pooling


def is_in_plane(node):
    """Whether the windows of a pooling node have two axes."""
    return getattr(node, "ndim", 2) == 2


def pooling_of(node, cover_all=False):
    """Returns the :class:`~mixprec.backends.geometry.Pooling` of a node, if it has more than two axes with so many."""
    if hasattr(node, "ksize"):
        numbers = node.ksize, node.stride, node.pad
    else:
        numbers = (node.kh, node.kw), (node.sy, node.sx), (node.ph, node.pw)
    return Pooling(*map(tuple, numbers), bool(cover_all))

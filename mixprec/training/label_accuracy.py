"""Accuracies that ignore padding. The host reads nothing, so that a CUDA graph can contain them."""

from mixprec import functions

IGNORED = -1  # the label of padding, as in chainer.functions.softmax_cross_entropy
TOP = 5


def accuracy(y, t, top=None, loss=None):
    """Returns the fraction of labels whose logit is the largest (the first among equals, as in an argmax).

    With ``top``, the fraction of labels whose logit is among the ``top`` largest. Logits that are equal to the label's
    logit, or NaN, then count as larger. In such ties ``torch.topk`` may pick either logit; this is its worst case.
    Chainer's own function reads the number of ignored labels on the host, and counts in the dtype of the logits.

    Args:
        y: logits (N, K), variable or array; K is larger than ``top``.
        t: labels (N,), signed integers; -1 is ignored.
        top: number of logits, or ``None``.
        loss: as for :func:`mixprec.functions.accuracy`.

    Returns:
        chainer.Variable: float32 of shape (); 0 if no label counts.
    """
    return functions.accuracy(y, t, IGNORED, top=top, loss=loss)


def valid_images(arrays):
    """Returns the number of images of a batch that are not padding.

    Args:
        arrays: tuple of arrays, the first with images. If the second has integers, these are labels.

    Returns:
        An integer or, if labels are on a device, an array of shape () there.
    """
    if len(arrays) > 1 and arrays[1].dtype.kind == "i":
        return (arrays[1] != IGNORED).sum()
    return len(arrays[0])

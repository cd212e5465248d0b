"""Backward passes on a scaled loss.

``scale_loss`` of the wrapper makes a :class:`ScaledLoss` by :class:`ScaledPasses`, and so does ``update()``, except for
mixprec's cross entropies. :mod:`~mixprec.precision.pass_scales` makes its ``backward`` record the factor on parameters.
"""

import contextlib
import operator
import sys
from collections.abc import Iterator

import chainer
import numpy as np

from mixprec import functions
from mixprec.base import arguments
from mixprec.base.dtypes import BFLOAT16
from mixprec.functions.classification import CrossEntropy
from mixprec.precision.loss_scale import NoLossScale
from mixprec.precision.model_parallel import ENDS, is_part_of_chain


class ScaledLoss(chainer.Variable):
    """A loss that was multiplied by ``factor``; its ``backward`` records the factor on the parameters that it reaches.

    Attributes:
        factor: float32 array of shape ().
        unscaled: the loss before the multiplication.
        looking_on: ``looking_on(factor)`` returns a context for the pass, in which a preconditioner observes layers.
    """

    looking_on = staticmethod(contextlib.nullcontext)

    def backward(self, retain_grad=False, enable_double_backprop=False, loss_scale=None):
        """Runs :meth:`chainer.Variable.backward`.

        Raises:
            ValueError: ``loss_scale`` is given, but the loss is scaled already.
        """
        if loss_scale is not None:
            raise ValueError("backward(loss_scale=...) of a loss that scale_loss() has scaled already")
        loss = self
        if self.array.size == 1 and self.grad_var is None:  # otherwise Chainer would multiply by the factor again
            if _begins_with(self.unscaled, self.factor):
                loss = self.unscaled
            else:
                with chainer.using_device(self.device):
                    self.grad = self.xp.ones_like(self.array)
        _run(loss, self.factor, self.looking_on, retain_grad, enable_double_backprop)


def _begins_with(loss, factor):
    """Whether the backward pass can begin with the factor as the gradient of the unscaled loss.

    A gradient of 1, multiplied by the factor, would take two more launches. Other functions, such as an addition, pass
    the gradient on: a parameter would get the factor itself.
    """
    fits = type(factor) is type(loss.array) and isinstance(loss.creator_node, CrossEntropy)
    if fits:
        loss.grad = factor.reshape(loss.shape)
    return fits


def _run(loss, factor, looking_on, *options):
    # The loss scale handles overflows; NumPy's warnings about them would be noise.
    with np.errstate(over="ignore", invalid="ignore"), looking_on(factor), _naming_the_scale(factor):
        chainer.Variable.backward(loss, *options, loss_scale=factor)


@contextlib.contextmanager
def _naming_the_scale(factor):
    """Adds the loss scale to Chainer's error about a NaN in a backward pass, which only its debug mode raises."""
    try:
        yield
    except RuntimeError as error:
        if not (chainer.is_debug() and str(error).startswith("NaN is detected")):
            raise
        raise RuntimeError(
            f"{str(error).splitlines()[0]}, at a loss scale of {float(factor)}: if that is an overflow, a run without "
            f"chainer.set_debug(True) skips the step"
        ) from error


def scaled(loss, factor):
    """Returns ``loss * factor`` for ``backward``; a 16-bit loss becomes float32, which can hold every factor.

    Args:
        loss: variable.
        factor: float32 array of shape () on the device of ``loss``.

    Raises:
        ValueError: the loss is scaled already.
    """
    if isinstance(loss, ScaledLoss):
        raise ValueError("the loss is scaled already")
    if loss.dtype == "float16":
        loss = chainer.functions.cast(loss, "float32")
    elif loss.dtype == BFLOAT16:  # Chainer does not cast it
        loss = functions.cast(loss, "float32")
    result = loss * factor.astype(loss.dtype, copy=False)
    result.__class__ = ScaledLoss  # the variable that Chainer's graph already knows, with another backward()
    result.factor, result.unscaled = factor, loss
    result.node.is_scaled = True  # for passes from variables that were computed from it
    return result


def check_loss(loss: chainer.Variable) -> None:
    """Checks that a loss can be scaled: ``backward`` of several elements would silently do nothing.

    Raises:
        TypeError: it is not a floating-point variable.
        ValueError: it does not have exactly one element.
    """
    if not isinstance(loss, chainer.Variable):
        raise arguments.not_a("loss", loss, "a chainer.Variable")
    if loss.array is None:
        raise ValueError("loss must have one element; found a variable that has no array")
    if loss.dtype.kind != "f" and loss.dtype != BFLOAT16:
        raise TypeError(f"loss must be floating-point numbers; found {loss.dtype}")
    if loss.size != 1:
        raise ValueError(f"loss must have one element, as F.sum(loss) and F.mean(loss) have; found shape {loss.shape}")


class ScaledPasses:
    """The backward passes of the current step; all losses have the scale of the first.

    Args:
        scaler: the loss scale.
        preconditioner: :class:`~mixprec.kfac.preconditioner.KFAC`, or ``None``.

    Attributes:
        factor: the factor on losses, an array of shape (); ``None`` before the first pass of a step, and without a
            scale. With a preconditioner and no scale it is 1.
    """

    def __init__(self, scaler, preconditioner=None):
        self._scaler, self._preconditioner = scaler, preconditioner
        self._looking_on = ScaledLoss.looking_on if preconditioner is None else preconditioner.collecting
        self.factor = None

    def factor_on(self, device):
        """Returns the factor on a device, or ``None`` without a scale."""
        if self.factor is None:
            self.factor = self._scaler.factor(device)
            if self._preconditioner is not None:
                self._preconditioner.begin()
                if self.factor is None:
                    self.factor = device.xp.ones((), np.float32)
        return self.factor if self.factor is None else device.send(self.factor)

    def scale(self, loss):
        """Returns the scaled loss; raises as :func:`check_loss` and :func:`scaled` do.

        A loss whose graph continues in other processes is not scaled (:mod:`~mixprec.precision.model_parallel`).
        """
        return self._scaled(loss, self._factor_of(loss))

    def backward(self, loss):
        """Does what ``scale(loss).backward()`` does, without a scaled loss if the pass can begin at the loss itself."""
        factor = self._factor_of(loss)
        if factor is not None and _begins_with(loss, factor):
            _run(loss, factor, self._looking_on)
        else:
            self._scaled(loss, factor).backward()

    def _scaled(self, loss, factor):
        if factor is None:
            return loss
        result = scaled(loss, factor)
        result.looking_on = self._looking_on
        return result

    def _factor_of(self, loss):
        if ENDS in sys.modules and is_part_of_chain(loss, not isinstance(self._scaler, NoLossScale)):
            return None
        check_loss(loss)
        return self.factor_on(loss.device)

    def run(self, model, lossfun, args, kwds, ranks=None, search=None):
        """Calls a loss function, clears the gradients of the model, and runs ``backward`` of each loss it returns.

        Args:
            model, lossfun, args, kwds: as for ``update``.
            ranks: :class:`~mixprec.optimizer.ranks.Ranks` of a wrapper with a communicator, or ``None``. The last
                backward pass runs inside of its ``last_pass()``, if it is known beforehand to be the last.
            search: :class:`~mixprec.precision.scale_search.ScaleSearch` of a first scale, or ``None``.

        Raises:
            ValueError: there are more losses than the length hint of their iterator.
        """
        # The loss scale handles overflows; NumPy's warnings about them would be noise.
        with np.errstate(over="ignore", invalid="ignore"):
            losses = lossfun(*args, **kwds)
            model.cleargrads()
            left = operator.length_hint(losses) if isinstance(losses, Iterator) else 1
            is_known = left > 0 and ranks is not None
            for loss in losses if isinstance(losses, Iterator) else (losses,):
                if is_known and not left:
                    raise ValueError("the iterator of losses has more of them than its length hint says")
                left -= 1
                if search is not None and isinstance(loss, chainer.Variable) and search.takes(loss, left):
                    search.run(self, loss)
                    del loss
                    continue
                search = None
                with contextlib.nullcontext() if left or ranks is None else ranks.last_pass():
                    self.backward(loss)
                del loss  # to free memory for the next one

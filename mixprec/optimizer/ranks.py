"""The wrapper as one of several processes that train one model: what :class:`Ranks` adds to setup and to a step.

:class:`~mixprec.MixedPrecisionOptimizer` has one if it has a communicator. Its ``setup`` calls :meth:`Ranks.set_up`;
each update :meth:`Ranks.begin` before the forward pass, :meth:`Ranks.last_pass` around the last backward pass, and
:meth:`Ranks.finish` before the part of the step that looks at gradients. All of that part then sees the mean over
ranks: check, hooks, norms, rules, loss scale. So all ranks skip a step together.
"""

import contextlib
import math
import operator
from collections.abc import Iterator

import chainer
import numpy as np

from mixprec import arguments
from mixprec.backends.memory import axes
from mixprec.distributed import readiness
from mixprec.distributed.exchange import GradientExchange
from mixprec.distributed.mpi_transport import MpiTransport
from mixprec.distributed.same_models import check_same, check_settings
from mixprec.dtypes import is_half
from mixprec.loss_scale import NoLossScale
from mixprec.optimizer.grad_scales import MIXED, NOT_REACHED, ZERO, UsedScale, factor_of, grad_scale_of


def ranks_of(communicator, allreduce_dtype):
    """Returns a :class:`Ranks`, or ``None`` without a communicator.

    Raises:
        TypeError: ``communicator`` is not one of ChainerMN's.
        ValueError: ``allreduce_dtype`` is no dtype for sums, or is given without a communicator.
    """
    if communicator is None:
        if allreduce_dtype is not None:
            raise ValueError("allreduce_dtype is that of sums over processes, and needs a communicator")
        return None
    if isinstance(communicator, type) or not hasattr(communicator, "mpi_comm"):
        found = arguments.found(communicator)
        raise TypeError(f"communicator must be one of chainermn.create_communicator(...), or None; found {found}")
    dtype = "float32" if allreduce_dtype is None else allreduce_dtype
    return Ranks(communicator, arguments.storage_dtype("allreduce_dtype", dtype))


class Ranks:
    """Averages gradients over processes.

    Args:
        communicator: of ChainerMN.
        dtype_of_sum: in which gradients in float16 and bfloat16 are added.

    Attributes:
        communicator: the same.
    """

    def __init__(self, communicator, dtype_of_sum):
        self.communicator = communicator
        self._dtype_of_sum = dtype_of_sum
        self._transport = None

    def set_up(self, masters, statistics, scaler):
        """Makes all ranks begin with the parameters of rank 0.

        Args:
            masters: :class:`~mixprec.optimizer.masters.Masters`.
            statistics: :class:`~mixprec.optimizer.running_statistics.RunningStatistics`.
            scaler: the loss scale.

        Raises:
            ValueError: parameters or settings are not the same on all ranks; on all ranks, naming the first difference.
        """
        if self._transport is None:
            self._transport = MpiTransport(self.communicator.mpi_comm)
        readiness.install()
        self._masters, self._statistics = masters, statistics
        self._scaler = scaler
        self._has_tried = False
        self._walked, self._named = None, []
        self._exchange = GradientExchange(self._transport, self._dtype_of_sum, self._all())
        members = self._exchange.members
        of_ranks = self._transport.gather((members.description, _settings(scaler, self._dtype_of_sum)))
        check_same([description for description, _ in of_ranks])
        check_settings([settings for _, settings in of_ranks])
        self._send(members.initialized)
        self._agreed, self._sent = None, set(members.keys)

    def begin(self, forward=None):
        """Begins a step.

        Args:
            forward: function that calls the loss function; ``None`` if backward passes are over.

        Raises:
            ValueError: parameters are not the same on all ranks, or their values cannot be.
        """
        self._exchange.begin(self._all())
        if self._exchange.members.description == self._agreed:
            return
        self._exchange.agree()  # so all ranks come by here
        if forward is not None and not self._has_tried and any(param.array is None for _, param in self._all()):
            self._has_tried = True
            self._initialize(forward)
            self._exchange.leave()
            self._exchange.begin(self._all())
            self._exchange.agree()
        members = self._exchange.members
        new = [each for each, key in zip(members.initialized, members.keys, strict=True) if key not in self._sent]
        if new and forward is None:
            self._exchange.leave()
            raise ValueError(
                f"{new[0][0]} has got its values after setup(), other ones on each rank: call the model once before "
                "setup(), or let update(lossfun, ...) call it"
            )
        self._send(new)
        self._sent.update(members.keys)
        self._agreed = members.description

    def last_pass(self):
        """Returns a context for the last backward pass of a step, in which gradients are sent already."""
        return self._exchange.overlapped()

    def finish(self, passes, begins):
        """Leaves in the parameters the means of their gradients, each with its loss scale.

        Args:
            passes: :class:`~mixprec.optimizer.scaled_loss.ScaledPasses` of the step.
            begins: whether the step begins here, after backward passes of the user's own.
        """
        if begins:
            self.begin()
        members = self._exchange.members
        for _, param in self._all():
            if param.array is not None and id(param) not in members.names:
                param.cleargrad()  # its values are sent first, in the next step
        params = [param for _, param in members.initialized]
        scales = list(map(grad_scale_of, params))
        is_scaled = np.array(
            [p.grad is not None and scale is not ZERO for p, scale in zip(params, scales, strict=True)]
        )
        numbers = {id(scale): self._number(scale) for scale in scales}
        own = np.where(is_scaled, [numbers[id(scale)] for scale in scales], 0.0)
        counts, sums = self._exchange.finish(np.array([is_scaled, own]))
        self._set_scales(params, scales, is_scaled, own, counts, sums, passes)

    def complete(self):
        """Notes that the update is over; the next one finds out whether that is so on all ranks."""
        self._exchange.updates += 1

    def _set_scales(self, params, scales, is_scaled, own, counts, sums, passes):
        """Leaves on each parameter the scale that all ranks have for its gradient, or ``MIXED``."""
        for number in np.flatnonzero(counts):
            param, scale = params[number], scales[number]
            if not is_scaled[number]:
                param._loss_scale = _scale_of(sums[number] / counts[number], passes.factor_on(param.device))
            elif math.isnan(own[number]):
                pass  # it is refused as it is, and by all others
            elif sums[number] != counts[number] * own[number]:
                param._loss_scale = MIXED
            else:  # a UsedScale knew the array that was there before
                param._loss_scale = scale.factor if isinstance(scale, UsedScale) else scale

    def _number(self, scale):
        """Returns a scale as a number, which is NaN if the gradient cannot be used."""
        if scale is None and not isinstance(self._scaler, NoLossScale):
            return math.nan
        return float(factor_of(scale))

    def _all(self):
        """Returns ``[(name, parameter)]`` of the model in the order of names, each parameter once."""
        index = self._masters.index
        index.refresh()
        if index.namedparams is not self._walked:
            self._walked, once = index.namedparams, {}
            for name, param in sorted(self._walked, key=operator.itemgetter(0)):
                once.setdefault(id(param), (name, param))
            self._named = list(once.values())
        return self._named

    def _initialize(self, forward):
        """Calls the loss function once, for the parameters that get their shapes in it, and forgets what it did."""
        reporting = chainer.report_scope({}) if chainer.reporter._get_reporters() else contextlib.nullcontext()
        with self._statistics.kept(), reporting, np.errstate(over="ignore", invalid="ignore"):
            losses = forward()
            if isinstance(losses, Iterator):
                next(losses, None)

    def _send(self, named):
        """Writes the values of rank 0 into parameters and masters of all ranks."""
        for name, param in named:
            if not isinstance(param.array, np.ndarray):
                raise ValueError(
                    f"{name} is on {param.device}: a communicator averages gradients of NumPy's arrays only"
                )
            array = self._masters.current(name, param).array
            turned = array.transpose(axes(array))
            memory = turned.copy(order="C")
            self._transport.broadcast(memory)
            turned[...] = memory
            if is_half(param.dtype):
                with np.errstate(over="ignore"):
                    param.array[...] = array


def _settings(scaler, dtype_of_sum):
    own = {name: value for name, value in vars(scaler).items() if not name.startswith("_")}
    return {
        "loss_scale": type(scaler).__name__,
        **{f"{name} of the loss scale": value for name, value in {**own, "value": scaler.value}.items()},
        "allreduce_dtype": dtype_of_sum.name,
    }


def _scale_of(number, factor):
    """Returns the scale that is ``number`` on all ranks that have a gradient: ``factor``, if it is that of the step."""
    if math.isnan(number):
        return MIXED
    if number == (1.0 if factor is None else float(factor)):
        return factor
    return NOT_REACHED if number == 1 else float(number)

"""Data-parallel training in the wrapper: what :class:`Ranks` adds to setup and to a step with several processes.

:class:`~mixprec.MixedPrecisionOptimizer` has one if it has a communicator. Its ``setup`` calls :meth:`Ranks.set_up`;
each update :meth:`Ranks.begin` before the forward pass, :meth:`Ranks.last_pass` around the last backward pass, and
:meth:`Ranks.finish` before the part of the step that looks at gradients. All of that part then sees the mean over
ranks: check, hooks, norms, rules, loss scale. Therefore all ranks skip a step together.
"""

import contextlib
import math
import operator
from collections.abc import Iterator

import chainer
import numpy as np

from mixprec.backends import is_of_numpy
from mixprec.backends.capture_error import CaptureError
from mixprec.backends.memory import axes
from mixprec.backends.nccl import nccl_of
from mixprec.backends.transfers import on_host, to_host
from mixprec.base import arguments
from mixprec.base.dtypes import STORAGE_DTYPES, is_half
from mixprec.distributed import readiness
from mixprec.distributed.exchange import GradientExchange
from mixprec.distributed.mpi_transport import MpiTransport
from mixprec.distributed.nccl_transport import NcclTransport
from mixprec.distributed.same_models import check_same, check_settings
from mixprec.precision.grad_scales import MIXED, NOT_REACHED, UNSCALED_FP16, ZERO, UsedScale, factor_of, grad_scale_of
from mixprec.precision.loss_scale import NoLossScale

OF_STEP = -1.0  # the factor of the step, on a device; all factors are positive


def ranks_of(communicator, allreduce_dtype):
    """Returns a :class:`Ranks`, or ``None`` without a communicator.

    Raises:
        TypeError: ``communicator`` is not a ChainerMN communicator.
        ValueError: ``allreduce_dtype`` is not a dtype for sums, or is given without a communicator.
    """
    if communicator is None:
        if allreduce_dtype is not None:
            raise ValueError("allreduce_dtype is the dtype of sums over processes, and needs a communicator")
        return None
    if isinstance(communicator, type) or not hasattr(communicator, "mpi_comm"):
        found = arguments.found(communicator)
        raise TypeError(f"communicator must be one of chainermn.create_communicator(...), or None; found {found}")
    if allreduce_dtype is not None:
        allreduce_dtype = arguments.storage_dtype("allreduce_dtype", allreduce_dtype)
    return Ranks(communicator, allreduce_dtype)


class Ranks:
    """Averages gradients over processes.

    Args:
        communicator: a ChainerMN communicator.
        dtype_of_sum: dtype in which float16 and bfloat16 gradients are added; ``None`` for the default of host or
            device.

    Attributes:
        communicator: the ChainerMN communicator.
    """

    def __init__(self, communicator, dtype_of_sum):
        self.communicator = communicator
        self._dtype_of_sum = dtype_of_sum
        self._mpi = None
        self._captures = 0

    def set_up(self, masters, statistics, scaler, preconditioner, rates):
        """Makes all ranks start from the parameters of rank 0.

        Args:
            masters: :class:`~mixprec.optimizer.masters.Masters`.
            statistics: :class:`~mixprec.optimizer.running_statistics.RunningStatistics`.
            scaler: the loss scale.
            preconditioner: :class:`~mixprec.kfac.preconditioner.KFAC`, or ``None``.
            rates: from :func:`mixprec.optimizer.part_rates.checked`.

        Raises:
            ValueError: parameters or settings differ between ranks; raised on all ranks, naming the first difference.
        """
        if self._mpi is None:
            self._mpi = MpiTransport(self.communicator.mpi_comm)
        readiness.install()
        self._masters, self._statistics = masters, statistics
        self._scaler = scaler
        self._has_tried = False
        self._walked, self._named = None, []
        self._exchange = GradientExchange(self._mpi, self._dtype_of_sum, self._all())
        members = self._exchange.members
        of_ranks = self._mpi.gather((members.description, _settings(scaler, self._dtype_of_sum, preconditioner, rates)))
        check_same([description for description, _ in of_ranks])
        check_settings([settings for _, settings in of_ranks])
        self._choose_transport()
        self._send(members.initialized)
        self._agreed, self._sent = None, set(members.keys)

    def begin(self, forward=None):
        """Begins a step.

        Args:
            forward: function that calls the loss function; ``None`` if backward passes are over.

        Raises:
            ValueError: parameters differ between ranks, or their values cannot be made the same.
        """
        self._exchange.begin(self._all())
        if self._exchange.members.description == self._agreed:
            return
        self._exchange.agree()  # so all ranks get here
        if forward is not None and not self._has_tried and any(param.array is None for _, param in self._all()):
            self._has_tried = True
            self._initialize(forward)
            self._exchange.leave()
            self._exchange.begin(self._all())
            self._exchange.agree()
        self._choose_transport()
        members = self._exchange.members
        new = [each for each, key in zip(members.initialized, members.keys, strict=True) if key not in self._sent]
        if new and forward is None:
            self._exchange.leave()
            raise ValueError(
                f"{new[0][0]} was initialized after setup(), differently on each rank: call the model once before "
                "setup(), or let update(lossfun, ...) call it"
            )
        self._send(new)
        self._sent.update(members.keys)
        self._agreed = members.description

    def last_pass(self, sends=True):
        """Returns a context for the last backward pass of a step, during which gradients are sent already.

        Args:
            sends: whether gradients are sent. Otherwise another pass may follow.
        """
        return self._exchange.overlapped(sends)

    def largest(self, number):
        """Returns the largest of the numbers of all ranks; a collective call."""
        return max(self._exchange.transport.gather(number))

    def finish(self, passes, begins):
        """Leaves the averaged gradients in the parameters, each with its loss scale.

        Args:
            passes: :class:`~mixprec.precision.scaled_loss.ScaledPasses` of the step.
            begins: whether the step begins here, after the user's own backward passes.
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
        used = {id(scale): scale for scale, is_so in zip(scales, is_scaled, strict=True) if is_so}
        numbers = {key: self._number(scale, passes) for key, scale in used.items()}
        own = np.where(is_scaled, [numbers.get(id(scale), 0.0) for scale in scales], 0.0)
        counts, sums = self._exchange.finish(np.array([is_scaled, own]))
        self._set_scales(params, scales, is_scaled, own, counts, sums, passes)

    # --- for captured steps

    @property
    def memory(self):
        """An object that is replaced when gradients move in memory."""
        return self._exchange.memory

    def called(self, number, vote):
        """Returns a context for a call of a captured step.

        See :meth:`GradientExchange.called <mixprec.distributed.exchange.GradientExchange.called>`.
        """
        return self._exchange.called(self._all(), number, vote)

    def capturing(self):
        """Returns a context for a step that is captured: ranks do not communicate on the host."""
        return self._exchange.capturing()

    def next_capture(self):
        """Returns the number of a capture, from 1 on; all ranks capture at the same time."""
        self._captures += 1
        return self._captures

    def first(self, reason):
        """Returns the first reason of any rank, naming the rank; ``None`` if no rank has one.

        Args:
            reason: str or ``None``.
        """
        of_ranks = enumerate(self._exchange.transport.gather(reason))
        return next((f"on rank {rank}: {each}" for rank, each in of_ranks if each is not None), None)

    @property
    def transport(self):
        """The :class:`~mixprec.distributed.transport.Transport` that sends gradients."""
        return self._exchange.transport

    def complete(self):
        """Records that the update is over; the next update checks whether that is so on all ranks."""
        self._exchange.updates += 1

    def _set_scales(self, params, scales, is_scaled, own, counts, sums, passes):
        """Leaves on each parameter the scale that all ranks have for its gradient, or ``MIXED``."""
        for number in np.flatnonzero(counts):
            param, scale = params[number], scales[number]
            if not is_scaled[number]:
                param._loss_scale = _scale_of(sums[number] / counts[number], param, passes)
            elif math.isnan(own[number]):
                pass  # it is refused as it is, and on all other ranks
            elif sums[number] != counts[number] * own[number]:
                param._loss_scale = MIXED
            else:  # a UsedScale belongs to the array that was there before
                param._loss_scale = scale.factor if isinstance(scale, UsedScale) else scale

    def _number(self, scale, passes):
        """Returns a scale as a number, which is NaN if the gradient cannot be used.

        A factor on a device is not read if it is the factor of the step, which is the same on all ranks.
        """
        if scale is UNSCALED_FP16 and not isinstance(self._scaler, NoLossScale):
            return math.nan
        factor = factor_of(scale)
        if on_host(factor):
            return float(factor)
        if factor is passes.factor:
            return OF_STEP
        try:
            return float(to_host(factor))
        except RuntimeError as error:
            raise CaptureError(
                "a gradient of an earlier step, still scaled, is used again, and its scale would have to be read: "
                "call model.cleargrads() before backward passes"
            ) from error

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
        """Calls the loss function once to initialize parameters without shapes; its other effects are undone."""
        reporting = chainer.report_scope({}) if chainer.reporter._get_reporters() else contextlib.nullcontext()
        with self._statistics.kept(), reporting, np.errstate(over="ignore", invalid="ignore"):
            losses = forward()
            if isinstance(losses, Iterator):
                next(losses, None)

    def _choose_transport(self):
        """Chooses the transport of gradients: NCCL if parameters are on a device."""
        members = self._exchange.members
        members.check_device()
        array = next((param.array for _, param in members.initialized), None)
        if array is None or is_of_numpy(array):
            self._exchange.transport = self._mpi
        else:
            for name, param in members.initialized:
                if param.dtype not in STORAGE_DTYPES:
                    raise ValueError(
                        f"{name} is {param.dtype}: on a GPU gradients in float16, bfloat16 and float32 are averaged"
                    )
            self._exchange.transport = NcclTransport(self._mpi, nccl_of(self.communicator, array))

    def _send(self, named):
        """Broadcasts the values of rank 0 into parameters and masters of all ranks."""
        for name, param in named:
            array = self._masters.current(name, param).array
            turned = array.transpose(axes(array))
            memory = turned.copy(order="C")
            self._exchange.transport.broadcast(memory)
            turned[...] = memory
            if is_half(param.dtype):
                with np.errstate(over="ignore"):
                    param.array[...] = array


def _settings(scaler, dtype_of_sum, preconditioner, rates):
    own = {name: value for name, value in vars(scaler).items() if not (name.startswith("_") or name == "is_searching")}
    return {
        "loss_scale": type(scaler).__name__,
        **{f"{name} of the loss scale": value for name, value in {**own, "value": scaler.value}.items()},
        "allreduce_dtype": None if dtype_of_sum is None else dtype_of_sum.name,
        "rates": str(rates),
        "preconditioner": None if preconditioner is None else type(preconditioner).__name__,
        **({} if preconditioner is None else {f"{k} of K-FAC": v for k, v in preconditioner.settings.items()}),
    }


def _scale_of(number, param, passes):
    """Returns the scale, ``number`` on all ranks that have a gradient; the factor itself if it is the step's."""
    if math.isnan(number):
        return MIXED
    factor = passes.factor_on(param.device)
    if factor is None:
        of_step = 1.0
    else:
        of_step = float(factor) if on_host(factor) else OF_STEP
    if number == of_step:
        return factor
    return NOT_REACHED if number == 1 else float(number)

"""The batched update on a device: a step of all parameters in two launches, with nothing read back.

The number of launches in a step, whatever the number of parameters, of different rules, and of hooks:

================================================================================  =
no hook or rule needs norms                                                       2
rules with norms: LARS, LAMB                                                      2
``GradientClipping`` or ``GradientLARS``, and no hook after it                    2
one of these with elementwise hooks after it, or with LARS or LAMB                3
``GradientClipping`` and ``GradientLARS``                                         3
================================================================================  =

In general: one for each norm that depends on an earlier one, one more if elementwise hooks follow the last norm (one,
if there are no norms), and one for the update.
"""

import contextlib
import itertools
import operator

import chainer

from mixprec.backends.memory import axes, is_dense, same_order
from mixprec.backends.transfers import to_host
from mixprec.base.scoped import scoped
from mixprec.optimizer.batch.kernel_program import KernelProgram, points_of, source_of
from mixprec.optimizer.batch.table import GRADIENT_IS_FLOAT, Table
from mixprec.precision.loss_scale import DynamicLossScale
from mixprec.precision.step_counter import StepCounter
from mixprec.precision.step_state import kernel_arguments

_KERNELS = ("check", "update")
_GRAD, _GRAD_VAR, _SHAPE, _DTYPE = map(operator.attrgetter, ("_grad", "_grad_var", "shape", "dtype"))
_SUMMING = {None: 0, "each": 1, "all": 2}


class DeviceBatch:
    """Updates the same parameters in every step. The cost of launching does not depend on their number.

    A step is :meth:`check`, then :meth:`update`. The caller may read anything in between: only :meth:`update` changes
    the parameters.

    Args:
        entries: :class:`~mixprec.optimizer.batch.entries.Entry` of each parameter, on one device, none in float64. The
            entries, their rules and hooks must not change; arrays and hyperparameters may.
        launcher: :class:`~mixprec.backends.launch.CupyLauncher` of their device.
        seed: seed of the random numbers for ``GradientNoise``, below 2**63. They depend only on the seed, on the index
            of the parameter in ``entries``, and on ``t``.

    Attributes:
        applied: number of steps that were not skipped since the last :meth:`settle`, an int64 array of shape () on the
            device. ``t`` of the rules does not include them yet.
        table: the :class:`~mixprec.optimizer.batch.table.Table` that the kernels read.
    """

    def __init__(self, entries, launcher, seed=0):
        self._entries = tuple(entries)
        self._launcher = launcher
        self._seed = seed
        keys = [KernelProgram.key(entry) for entry in self._entries]
        programs = {key: KernelProgram(entry) for key, entry in zip(keys, self._entries, strict=True)}
        indices = {key: index for index, key in enumerate(programs)}
        self._stages = _stages_of(self._entries, [programs[key] for key in keys])
        self._passes = max([1, *(program.passes for program in programs.values())])
        self._kernels = launcher.compile(
            source_of(tuple(programs.values()), launcher.threads, launcher.chunk), _KERNELS
        )
        self._programs = [indices[key] for key in keys]
        self.table = Table(self._entries, self._programs, launcher)
        self._norms = launcher.full((len(self._entries) * points_of(programs.values()) + 1, 2), 0, "float32")
        self._partial = None  # partial sums of squares, two for each block
        self._ticket = launcher.full((), 0, "uint32")
        self._found = launcher.full((), False, "bool")
        self._skip = launcher.full((), False, "bool")
        self._constants = {}
        updated = [entry for entry in self._entries if entry.rule is not None]
        self._powers = [(entry.rule, *power) for entry in updated for power in entry.formula.powers.items()]
        self._bases = self._bases_now()
        self._chosen = self._expected = None  # entries that have a gradient, and the expected dtypes and shapes
        self._step = None  # arrays that the current step uses, and gradients of which it uses copies
        self.applied = launcher.full((), 0, "int64")

    def check(self, factors=None, restores=(), of_masters=()):
        """Checks whether all gradients are finite, unscaled and after hooks.

        Args:
            factors: for each entry the factor of its gradient: ``None`` for 1, a number, or a float32 or float64 array
                of shape () on the device. ``None`` for 1 everywhere.
            restores: ``[(array, its copy)]``, C-contiguous and on the device, from before the step: :meth:`update`
                copies them back if the step is skipped.
            of_masters: ids of the parameters whose gradients are read from their masters, in float32.

        Returns:
            Whether the step must be skipped: a boolean array of shape () on the device, the same array in every step,
            valid until the next check.

        Raises:
            ValueError: a gradient or an array has a wrong shape, dtype or device; the message names the parameter.
        """
        self._step = None
        gradients, addresses, copied = self._gradients_with_masters(of_masters) if of_masters else self._gradients()
        factors = self._factors(factors)
        self.table.write(addresses, factors, restores)
        self._step = gradients, factors, restores, copied
        if any(self._stages) and (self._partial is None or self._partial.shape[0] < self.table.chunks):
            self._partial = self._launcher.full((self.table.chunks, 2), 0, "float64")
        arrays = [*map(self._address, (self._partial, self._found, self._skip))]
        for stage in range(self._passes):
            summing = _SUMMING[self._stages[stage] if stage < len(self._stages) else None]
            last = stage == self._passes - 1
            self._launch("check", self.table.chunks, [*arrays, stage, summing, int(last)])
        return self._skip

    def update(self, skip=None, scaler=None, counter=None, zero_gradients=False):
        """Updates masters, states and 16-bit parameters, or restores arrays in a skipped step; after :meth:`check`.

        Args:
            skip: another reason to skip the step: a boolean array of shape () on the device, or ``None``.
            scaler: the loss scale, whose state on the device advances, or ``None``.
            counter: :class:`~mixprec.precision.step_counter.StepCounter`, whose state on the device advances, or
                ``None``.
            zero_gradients: whether to set the gradients to zero, also if the step is skipped.
        """
        if self._step is None:
            raise RuntimeError("call check() before update()")
        self.follow_bases()
        address = self._address
        arguments = [self.table.restores, *map(address, (self._skip, skip)), int(zero_gradients)]
        for kind, state in ((StepCounter, counter), (DynamicLossScale, scaler)):
            arguments += kernel_arguments(kind, state, address)
        self._launch("update", self.table.chunks + self.table.restores, arguments)
        *_, copied = self._step
        if zero_gradients:
            for gradient in copied:
                self._launcher.zero(gradient)
        self._step = None

    def forget(self):
        """Releases the gradients of :meth:`check`, if no :meth:`update` follows."""
        self._step = None

    @contextlib.contextmanager
    def reading(self, table):
        """A context in which kernels read another table for the same parameters."""
        try:
            with scoped(self, table=table, _chosen=(), _expected=self._expected):  # and look at the gradients
                yield
        finally:
            self._step = None

    def settle(self):
        """Adds the steps that were not skipped to ``t`` of the rules; reads from the device.

        Returns:
            The number of these steps, for ``t`` of the optimizer.
        """
        applied = int(to_host(self.applied))
        self._launcher.zero(self.applied)
        for entry in self._entries:
            if entry.rule is not None:
                entry.rule.t += applied
        for (rule, name, _), base in zip(self._powers, self._bases, strict=True):
            setattr(rule, name, getattr(rule, name) * base**applied)
        return applied

    @property
    def must_settle(self):
        """Whether the base of a rule's powers has changed: then steps so far must be settled first."""
        return self._bases_now() != self._bases

    def follow_bases(self):
        """Must be called before a graph launches a step: powers use the current hyperparameters."""
        self._bases = self._bases_now()

    def _bases_now(self):
        return [getattr(rule.hyperparam, base) for rule, _, base in self._powers]

    def _gradients(self):
        """The gradients in their parameters' memory order, their addresses, and the originals of copied gradients."""
        table = self.table
        gradients = list(map(_GRAD, table.params))
        if not all(map(operator.is_, map(_GRAD_VAR, table.params), itertools.repeat(None))):  # from a backward pass
            gradients = [param.grad for param in table.params]
        present = [gradient for gradient in gradients if gradient is not None]
        chosen = None  # all
        if len(present) < len(gradients):
            chosen = [gradient is not None for gradient in gradients]
        if not table.look() or chosen != self._chosen:
            arrays = table.arrays if chosen is None else list(itertools.compress(table.arrays, chosen))
            self._chosen, self._expected = chosen, self._looks(arrays)
        addresses = self._launcher.addresses(present)
        if addresses is None or self._looks(present) != self._expected:
            return self._gradients_one_by_one(gradients)
        if chosen is not None:
            found = iter(addresses)
            addresses = [next(found) if is_there else 0 for is_there in chosen]
        return gradients, addresses, []

    def _looks(self, arrays):
        """The properties that gradients must share with their parameters."""
        return list(map(_SHAPE, arrays)), list(map(_DTYPE, arrays)), self._launcher.orders(arrays)

    def _gradients_one_by_one(self, gradients):
        used, copied = [], []
        for entry, gradient, array in zip(self._entries, gradients, self.table.arrays, strict=True):
            if gradient is not None:
                self._check_gradient(entry.name, gradient, array)
                if not (same_order(gradient, array) and is_dense(gradient)):
                    copied.append(gradient)
                    gradient = self._launcher.contiguous(gradient.transpose(axes(array)))
            used.append(gradient)
        return used, list(map(self._address, used)), copied

    def _gradients_with_masters(self, of_masters):
        """Like :meth:`_gradients`; treats the parameters' own gradients as copied, so that a step can zero them."""
        of_params, addresses, copied = self._gradients()
        gradients = list(of_params)
        for number, entry in enumerate(self._entries):
            if id(entry.param) in of_masters:
                gradients[number] = master = entry.master.grad
                is_half = entry.param.dtype != master.dtype
                addresses[number] = self._address(master) | (GRADIENT_IS_FLOAT if is_half else 0)
                copied = [*copied, of_params[number]]
        return gradients, addresses, copied

    def _check_gradient(self, name, gradient, array):
        if not self._launcher.holds(gradient):
            raise ValueError(f"the gradient of {name} is not on the device of the batch")
        if gradient.shape != array.shape or gradient.dtype != array.dtype:
            raise ValueError(
                f"the gradient of {name} is {gradient.dtype} of shape {gradient.shape}; "
                f"the parameter is {array.dtype} of shape {array.shape}"
            )

    def _factors(self, factors):
        if factors is None:
            return [None] * len(self._entries)
        if factors and all(map(operator.is_, factors, itertools.repeat(factors[0]))):
            return [self._factor(factors[0])] * len(factors)
        return list(map(self._factor, factors))

    def _factor(self, factor):
        if factor is None or isinstance(factor, chainer.get_array_types()):
            return factor
        if factor not in self._constants:
            self._constants[factor] = self._launcher.full((), factor, "float32")
        return self._constants[factor]

    def _address(self, array):
        return 0 if array is None else self._launcher.address(array)

    def _launch(self, name, blocks, arguments):
        common = [*self.table.addresses(), len(self._entries), self.table.chunks, self._seed]
        common += map(self._launcher.address, (self.applied, self._ticket, self._norms))
        self._launcher.launch(self._kernels[name], max(1, blocks), common + arguments)


def _stages_of(entries, programs):
    """Returns the kind of norms that each launch of ``check`` computes, ``"each"`` or ``"all"``.

    A hook that needs the norm of all gradients is a hook of the optimizer, and has the same position in all programs.
    """
    stages = []
    for entry, program in zip(entries, programs, strict=True):
        for index, kind in enumerate(program.norms):
            if index == len(stages):
                stages.append(kind)
            elif stages[index] != kind:
                raise ValueError(f"{entry.name}: hooks that need norms are not in the same order for all parameters")
    return stages

"""The table of parameters on the device: the addresses of their arrays, and their hyperparameters.

:class:`~mixprec.optimizer.batch.device_batch.DeviceBatch` makes one, and calls :meth:`Table.write` before the kernels
of each step. One buffer has everything, in this order: first data that may change in every step (addresses of
gradients, of loss scales, and of arrays that a skipped step restores; ``t`` and hyperparameters), then data that rarely
changes (addresses of masters, 16-bit parameters and states; the assignment of blocks to parts of parameters). A step
uploads nothing, the first part or everything, always in one copy.
"""

import itertools
import operator

import numpy as np

from mixprec.backends.memory import is_dense, same_order
from mixprec.optimizer.batch.kernel_program import MAX_STATES
from mixprec.optimizer.batch.values import Values, owners
from mixprec.optimizer.rules.formulas import CARRIED

# As in kernels/common.cuh.
_DTYPES = {"float16": 0, "bfloat16": 1, "float32": 2}
_FACTOR_IS_DOUBLE = GRADIENT_IS_FLOAT = 1  # flag in the lowest bit of an address
_MOVING = np.dtype([("grad", np.uint64), ("factor", np.uint64)])
_ROW = np.dtype(
    [
        ("half", np.uint64),
        ("master", np.uint64),
        ("states", np.uint64, MAX_STATES),
        ("carried", np.uint64),
        ("size", np.int64),
        ("dtype", np.int32),
        ("program", np.int32),
        ("values", np.int32),
        ("first_chunk", np.int32),
        ("chunks", np.int32),
        ("padding", np.int32),
    ]
)
_RESTORE = np.dtype([("now", np.uint64), ("before", np.uint64), ("bytes", np.int64)])
_CHUNK = np.dtype([("entry", np.int32), ("number", np.int32)])
_DATA, _STATE = map(operator.attrgetter, ("_data", "_state"))
_NBYTES = operator.attrgetter("nbytes")


class Table:
    """Rows for the entries of a batch.

    Args:
        entries: tuple of :class:`~mixprec.optimizer.batch.entries.Entry`.
        programs: index of the program of each entry.
        launcher: :class:`~mixprec.backends.launch.CupyLauncher`.

    Attributes:
        params: the parameters.
        arrays: their arrays at the last :meth:`look`.
        chunks: number of blocks for the parameters; known after the first :meth:`write`.
        restores: number of arrays that a skipped step restores, one block for each.
    """

    def __init__(self, entries, programs, launcher):
        self._entries = entries
        self._programs = programs
        self._launcher = launcher
        # Objects that every step checks, in lists that iterators traverse without bytecode.
        self.params = [entry.param for entry in entries]
        self._masters = [entry.master for entry in entries]
        self._rules = [entry.rule for entry in entries if entry.rule is not None]
        states = [(each.rule, name) for each in entries if each.rule is not None for name in all_states(each.formula)]
        self._rule_of_states, self._names_of_states = [rule for rule, _ in states], [name for _, name in states]
        self._arrays = None  # arrays that rows point to; held so that no other array gets their addresses
        self._values = Values(entries)
        self._flat = self._moving_addresses = self._restore_addresses = None
        self.chunks = self.restores = 0

    def look(self):
        """Checks all arrays, before :meth:`write`; returns whether they are the same as in the last one."""
        if self._arrays is None:
            self._init_states()
        self.arrays = [array for (array,) in map(_DATA, self.params)]
        try:
            states = list(map(dict.get, map(_STATE, self._rule_of_states), self._names_of_states))
        except TypeError:  # the user has removed the state of a rule
            self._init_states()
            states = [rule.state[name] for rule, name in zip(self._rule_of_states, self._names_of_states, strict=True)]
        self._all = self.arrays + [array for (array,) in map(_DATA, self._masters)] + states
        self._same_arrays = self._arrays is not None and all(map(operator.is_, self._all, self._arrays))
        return self._same_arrays

    def write(self, gradients, factors, restores=()):
        """Brings the table up to date, after :meth:`look`.

        The caller holds gradients and factors until its kernels are launched.

        Args:
            gradients: the address of the gradient of each entry; 0 for zeros. The lowest bit is set if the gradient is
                float32 although the parameter is not.
            factors: the factor of each gradient, a float32 or float64 array of shape () on the device, or ``None`` for
                1.
            restores: ``[(array, its copy)]``.
        """
        if not (same_values := self._values.look()):
            self._flat = None
        flat = self._values.now()
        moving = gradients, self._factor_addresses(factors)
        copies = self._restores(restores)
        same_rows = self._same_arrays and len(restores) == self.restores
        if not same_rows:
            self._build(self._values.size, len(restores))
        elif same_values and (flat, moving, copies) == (self._flat, self._moving_addresses, self._restore_addresses):
            return
        self._arrays = None  # until everything is written
        self._moving["grad"], self._moving["factor"] = moving
        self._host_restores["now"], self._host_restores["before"], self._host_restores["bytes"] = copies
        self._values.put(flat, self._host_values)
        self._send(self._head if same_rows else self._host.nbytes)
        self._flat, self._moving_addresses, self._restore_addresses = flat, moving, copies
        self._arrays = self._all

    def addresses(self):
        """Returns the addresses of the parts, for the kernels: moving, restores, values, rows, chunks."""
        start = self._launcher.address(self._device)
        return [start + offset for offset in self._offsets]

    def _send(self, size):
        """Uploads the first bytes of the buffer."""
        self._launcher.upload(self._host[:size], self._device)

    def _init_states(self):
        """Initializes states before the first update, so that a skipped one leaves Chainer's initial values."""
        for entry in self._entries:
            if entry.rule is not None and entry.rule.state is None:
                entry.rule._init_states(entry.master)

    def _factor_addresses(self, factors):
        if factors and all(map(operator.is_, factors, itertools.repeat(factors[0]))):
            return [self._factor_address(factors[0])] * len(factors)
        known = {}
        for factor in factors:
            if id(factor) not in known:
                known[id(factor)] = self._factor_address(factor)
        return [known[id(factor)] for factor in factors]

    def _restores(self, restores):
        """Returns addresses of arrays and of their copies, and their sizes in bytes."""
        if not restores:
            return [], [], []
        now, before = map(list, zip(*restores, strict=True))
        addresses = self._launcher.addresses(now), self._launcher.addresses(before)
        if None in addresses or self._launcher.orders(now + before) != ():
            raise ValueError("arrays that a skipped step restores must be C-contiguous and on the device of the batch")
        return *addresses, list(map(_NBYTES, now))

    def _factor_address(self, factor):
        if factor is None:
            return 0
        if not self._launcher.holds(factor) or factor.shape != () or str(factor.dtype) not in ("float32", "float64"):
            raise ValueError("a loss scale must be a float32 or float64 array of shape () on the device of the batch")
        return self._launcher.address(factor) | (_FACTOR_IS_DOUBLE if factor.dtype == np.float64 else 0)

    def _build(self, values, restores):
        """Lays out the buffer and fills in the data that rarely changes."""
        rows = np.zeros(len(self._entries), _ROW)
        first_value = first_chunk = 0
        for row, entry, program in zip(rows, self._entries, self._programs, strict=True):
            _check(entry, self._launcher)
            param, master, *states = _arrays_of(entry)
            row["half"] = 0 if param.dtype == np.float32 else self._launcher.address(param)
            row["master"] = self._launcher.address(master)
            row["states"][: len(states)] = [self._launcher.address(state) for state in states]
            if entry.rule is not None and entry.formula.carried:
                row["carried"] = self._launcher.address(entry.rule.state[CARRIED])
            row["size"] = master.size
            row["dtype"] = _DTYPES[str(param.dtype)]
            row["program"] = program
            row["values"] = first_value
            row["first_chunk"] = first_chunk
            row["chunks"] = chunks = max(1, -(-master.size // self._launcher.chunk))
            first_value += 1 + sum(len(owner.hyperparameters) for owner in owners(entry))
            first_chunk += chunks
        blocks = np.zeros(first_chunk, _CHUNK)
        blocks["entry"] = np.repeat(np.arange(len(rows)), rows["chunks"])
        blocks["number"] = np.arange(first_chunk) - np.repeat(rows["first_chunk"], rows["chunks"])

        parts = [np.zeros(len(rows), _MOVING), np.zeros(restores, _RESTORE), np.zeros(values), rows, blocks]
        ends = np.cumsum([part.nbytes for part in parts]).tolist()
        self._offsets = [0, *ends[:-1]]
        self._head = ends[2]
        self._host = np.concatenate([part.view(np.uint8) for part in parts])
        self._moving = self._host[: ends[0]].view(_MOVING)
        self._host_restores = self._host[ends[0] : ends[1]].view(_RESTORE)
        self._host_values = self._host[ends[1] : ends[2]].view(np.float64)
        self._device = self._launcher.full(max(1, self._host.nbytes), 0, np.uint8)
        self.chunks, self.restores = first_chunk, restores


def all_states(formula):
    """Returns the names of all states of a rule, of any shape."""
    return (*formula.states, CARRIED) if formula.carried else formula.states


def _arrays_of(entry):
    """Parameter, master, states."""
    if entry.rule is None:
        return entry.param.array, entry.master.array
    state = entry.rule.state
    return entry.param.array, entry.master.array, *(state[name] for name in entry.formula.states)


def _check(entry, launcher):
    param, master, *states = _arrays_of(entry)
    if str(param.dtype) not in _DTYPES:
        raise ValueError(f"{entry.name} has dtype {param.dtype}; allowed are {', '.join(_DTYPES)}")
    if entry.rule is not None and entry.formula.carried:
        carried = entry.rule.state[CARRIED]
        shape = (len(entry.formula.carried),)
        if not launcher.holds(carried) or carried.dtype != np.float64 or carried.shape != shape:
            raise ValueError(f"{entry.name}: the state {CARRIED} must be float64 of shape {shape} on its device")
    named = [("its array", param), ("its master", master), *(("a state of its rule", state) for state in states)]
    for what, array in named:
        if not launcher.holds(array):
            raise ValueError(f"{entry.name}: {what} is not on the device of the batch")
        if not is_dense(array):
            raise ValueError(f"{entry.name}: {what} is not dense in memory")
        if array.shape != master.shape:
            raise ValueError(f"{entry.name}: {what} has shape {array.shape}, its master {master.shape}")
        if not same_order(array, master):
            raise ValueError(f"{entry.name}: {what} has its axes in another order in memory than its master")
        if array is not param and array.dtype != np.float32:
            raise ValueError(f"{entry.name}: {what} has dtype {array.dtype}; it must be float32")
    if param.dtype == np.float32 and launcher.address(param) != launcher.address(master):
        raise ValueError(f"{entry.name}: it is in float32, but its master has another array")

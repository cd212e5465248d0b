"""The table of parameters on the device: where each one's arrays are, and its hyperparameters.

One buffer has all of it, in this order: what may move in every step (addresses of gradients and of loss scales, and of
what a skipped step restores; ``t`` and hyperparameters), and what hardly ever does (addresses of masters, copies and
states; which block of a launch has which part of which parameter). A step uploads nothing, the first part or
everything, always by one copy.
"""

import operator

import numpy as np

from mixprec.update.source import MAX_STATES

# As in kernels/common.cuh.
_DTYPES = {"float16": 0, "bfloat16": 1, "float32": 2}
_FACTOR_IS_DOUBLE = 1
_MOVING = np.dtype([("grad", np.uint64), ("factor", np.uint64)])
_ROW = np.dtype(
    [
        ("copy", np.uint64),
        ("master", np.uint64),
        ("states", np.uint64, MAX_STATES),
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


class Table:
    """Rows for the entries of a batch.

    Args:
        entries: tuple of :class:`~mixprec.update.entries.Entry`.
        programs: index of the program of each of them.
        launcher: :class:`~mixprec.backends.launch.CupyLauncher`.

    Attributes:
        chunks: number of blocks that the parameters need; known after the first :meth:`write`.
        restores: number of arrays that a skipped step restores, by a block for each.
    """

    def __init__(self, entries, programs, launcher):
        self._entries = entries
        self._programs = programs
        self._launcher = launcher
        self._arrays = None  # those the rows point to; held, so that nobody else gets their addresses
        self._values = None
        self.chunks = self.restores = 0

    def write(self, gradients, factors, restores=()):
        """Brings the table up to date. The caller holds the gradients and factors until its kernels are launched.

        Args:
            gradients: the gradient of each entry, contiguous; ``None`` for zeros.
            factors: what it was multiplied by, a float32 or float64 array of shape () on the device, or ``None`` for 1.
            restores: ``[(array, its copy)]``.
        """
        arrays = [array for entry in self._entries for array in _arrays_of(entry)]
        values = _values_of(self._entries)
        moving = np.zeros(len(self._entries), _MOVING)
        moving["grad"] = [0 if gradient is None else self._launcher.address(gradient) for gradient in gradients]
        moving["factor"] = self._factor_addresses(factors)
        address = self._launcher.address
        copies = np.array([(address(now), address(before), now.nbytes) for now, before in restores], _RESTORE)
        same_rows = self._arrays is not None and all(map(operator.is_, arrays, self._arrays))
        if not same_rows or len(copies) != self.restores:
            self._build(len(values), len(copies))
            self._arrays = arrays
            size = self._host.nbytes
        elif (
            values != self._values
            or not np.array_equal(moving, self._moving)
            or not np.array_equal(copies, self._host_restores)
        ):
            size = self._head
        else:
            return
        self._moving[...] = moving
        self._host_restores[...] = copies
        self._host_values[...] = values
        self._values = values
        self._launcher.upload(self._host[:size], self._device)

    def addresses(self):
        """Returns the addresses of the parts, as the kernels want them: moving, restores, values, rows, chunks."""
        start = self._launcher.address(self._device)
        return [start + offset for offset in self._offsets]

    def _factor_addresses(self, factors):
        known = {id(None): 0}
        for factor in factors:
            if id(factor) not in known:
                known[id(factor)] = self._factor_address(factor)
        return [known[id(factor)] for factor in factors]

    def _factor_address(self, factor):
        if not self._launcher.holds(factor) or factor.shape != () or str(factor.dtype) not in ("float32", "float64"):
            raise ValueError("a loss scale must be a float32 or float64 array of shape () on the device of the batch")
        return self._launcher.address(factor) | (_FACTOR_IS_DOUBLE if factor.dtype == np.float64 else 0)

    def _build(self, values, restores):
        """Lays out the buffer and fills in what hardly ever changes."""
        rows = np.zeros(len(self._entries), _ROW)
        first_value = first_chunk = 0
        for row, entry, program in zip(rows, self._entries, self._programs, strict=True):
            _check(entry, self._launcher)
            param, master, *states = _arrays_of(entry)
            row["copy"] = 0 if param.dtype == np.float32 else self._launcher.address(param)
            row["master"] = self._launcher.address(master)
            row["states"][: len(states)] = [self._launcher.address(state) for state in states]
            row["size"] = master.size
            row["dtype"] = _DTYPES[str(param.dtype)]
            row["program"] = program
            row["values"] = first_value
            row["first_chunk"] = first_chunk
            row["chunks"] = chunks = max(1, -(-master.size // self._launcher.chunk))
            first_value += 1 + sum(len(owner.hyperparameters) for owner in _owners(entry))
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


def _owners(entry):
    """The hooks and the update rule, in the order of their numbers."""
    return [hook.fold for hook in entry.hooks] + ([] if entry.rule is None else [entry.expression])


def _arrays_of(entry):
    """Parameter, master, states."""
    if entry.rule is None:
        return entry.param.array, entry.master.array
    if entry.rule.state is None:  # before the first update, so that one that is skipped leaves what Chainer begins with
        entry.rule._init_states(entry.master)
    state = entry.rule.state
    return entry.param.array, entry.master.array, *(state[name] for name in entry.expression.states)


def _check(entry, launcher):
    param, master, *states = _arrays_of(entry)
    if str(param.dtype) not in _DTYPES:
        raise ValueError(f"{entry.name} has dtype {param.dtype}; allowed are {', '.join(_DTYPES)}")
    named = [("its array", param), ("its master", master), *(("a state of its rule", state) for state in states)]
    for what, array in named:
        if not launcher.holds(array):
            raise ValueError(f"{entry.name}: {what} is not on the device of the batch")
        if not array.flags.c_contiguous:
            raise ValueError(f"{entry.name}: {what} is not contiguous")
        if array.shape != master.shape:
            raise ValueError(f"{entry.name}: {what} has shape {array.shape}, its master {master.shape}")
        if array is not param and array.dtype != np.float32:
            raise ValueError(f"{entry.name}: {what} has dtype {array.dtype}; it must be float32")
    if param.dtype == np.float32 and launcher.address(param) != launcher.address(master):
        raise ValueError(f"{entry.name}: its master is not its array, although that is in float32")


def _values_of(entries):
    """For every entry ``t`` and the hyperparameters of its hooks and its rule, one after the other."""
    known = {}

    def once(key, owner, source):
        if key not in known:
            known[key] = owner.hyperparameters_of(source)
        return known[key]

    values = []
    for entry in entries:
        rule = entry.rule
        values.append(0.0 if rule is None else float(rule.t))
        for hook in entry.hooks:
            values += once(id(hook.hook), hook.fold, hook.hook)
        if rule is None:
            continue
        own = vars(rule.hyperparam)
        if len(own) == 1 and vars(rule).keys().isdisjoint(entry.expression.hyperparameters):
            # Everything comes from the optimizer, like that of most other rules.
            values += once((id(own["_parent"]), id(entry.expression)), entry.expression, rule)
        else:
            values += entry.expression.hyperparameters_of(rule)
    return values

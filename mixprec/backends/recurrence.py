"""How a recurrent layer walks over packed sequences, and what it saves for its gradients."""

import itertools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

GATES = {"lstm": 4, "gru": 3, "gru_reset_before": 3, "tanh": 1, "relu": 1}
_SAVED = {"lstm": 4, "gru": 4, "gru_reset_before": 3, "tanh": 0, "relu": 0}


@dataclass(frozen=True)
class Recurrence:
    """One layer in one direction.

    Packed sequences lie step by step: row j of each step belongs to sequence j, and shorter sequences come later.

    Attributes:
        kind: a key of :data:`GATES`.
        batch: B, number of sequences with their states, of which the last ones may be empty.
        sizes: number of sequences in each step; it never grows.
        reverse: whether the layer goes from the last step of each sequence to its first.
        interleaved: whether the gates of a unit are neighbours, as in ``F.lstm``; otherwise the units of a gate are.
            The order of an LSTM's gates is then candidate, input, forget, output, else input, forget, candidate,
            output; a GRU has reset, update, candidate.
    """

    kind: str
    batch: int
    sizes: tuple[int, ...]
    reverse: bool = False
    interleaved: bool = False

    @property
    def rows(self):
        """Number of rows of packed sequences."""
        return sum(self.sizes)

    @property
    def gates(self):
        """Number of gates G."""
        return GATES[self.kind]

    @property
    def is_cell(self):
        """Whether it is the only step of a link that a program calls for each step."""
        return self.interleaved or self.kind == "gru_reset_before"

    @property
    def is_single(self):
        """Whether all sequences have one step."""
        return self.sizes == (self.batch,)

    @property
    def saved(self):
        """Number of values of each unit that are saved beside its states."""
        return _SAVED[self.kind]

    @property
    def order(self):
        """Indices of an LSTM's input, forget, candidate and output gate."""
        return (1, 2, 0, 3) if self.interleaved else (0, 1, 2, 3)

    def steps(self):
        """Returns ``(first row, number of rows)`` of each step, in the order of the forward pass."""
        steps = list(zip(itertools.accumulate(self.sizes, initial=0), self.sizes, strict=False))
        return steps[::-1] if self.reverse else steps

    def turns(self):
        """Returns ``(first row, rows, rows of the step before, rows of the step after)``, in the same order."""
        steps = self.steps()
        counts = [0, *(count for _, count in steps), 0]
        return [(*step, before, after) for step, before, after in zip(steps, counts, counts[2:], strict=False)]


class Recurred(NamedTuple):
    """What the backward pass of a layer needs beside its inputs and y.

    Attributes:
        gates: (rows, saved * H) in the storage dtype: the gates after their activation, in the order of the layer; of
            ``"gru"`` also the candidate's term of the states before the reset.
        states: (rows, H) in the storage dtype, the state h before each step.
        cells: (rows, H) float32, the state c before each step; ``None`` without one. On a device, of a single step,
            ``states`` and ``cells`` are the inputs h and c themselves, ``None`` for zeros.
        reset: (rows, H) in the storage dtype, the state h times the reset gate, of ``"gru_reset_before"``.
    """

    gates: Any
    states: Any
    cells: Any = None
    reset: Any = None


def sizes_of(lengths):
    """Returns how many sequences of some lengths there are in each step, a tuple of int."""
    return tuple((len(lengths) - np.cumsum(np.bincount(lengths))[:-1]).tolist())


def first_rows(lengths):
    """Returns the first row (T + 1,) of each step of packed sequences, and their number of rows at the end.

    Args:
        lengths: numbers of steps of the sequences, T at most.
    """
    return np.concatenate([[0], np.cumsum(sizes_of(lengths), dtype=np.int64)])

"""Plans: which buffers stay on the device, which are recomputed, and which move to another memory and back."""

import dataclasses
import math

import numpy as np

from mixprec.activation_memory.choosing import Search, movable
from mixprec.activation_memory.recording import Bus
from mixprec.activation_memory.timetable import KEEP, SWAP, Forecast, Schedule
from mixprec.base.messages import OneLineError

_SHOWN = 3  # buffers of each kind
_DONE = {"keep": "kept", "recompute": "recomputed", "swap": "swapped"}


class DoesNotFit(OneLineError):
    """No plan meets a budget.

    Args:
        message: one line.
        least: the smallest budget that a plan meets, in bytes.
    """

    def __init__(self, message, least):
        super().__init__(message)
        self.least = least


@dataclasses.dataclass(frozen=True)
class Plan:
    """The choice for each buffer of a round, with its cost and savings.

    Attributes:
        schedule: :class:`~mixprec.activation_memory.timetable.Schedule`.
        budget: bytes, or ``None``.
        recording: the :class:`~mixprec.activation_memory.recording.Recording` that it was made from.
        seconds: time of the round if all buffers stay.
        peak: largest number of bytes in use if all buffers stay.
    """

    schedule: Schedule
    budget: int | None
    recording: object = dataclasses.field(repr=False)
    seconds: float
    peak: int

    def __str__(self):
        lines = [f"{'':12}{'buffers':>8}{'MB':>12}"]
        for choice in ("keep", "recompute", "swap"):
            chosen = self._chosen(choice)
            size = sum([buffer.size for buffer in chosen])
            lines.append(f"{_DONE[choice]:12}{len(chosen):8,}{size / 1e6:12,.1f}")
        budget = "" if self.budget is None else f" of {_megabytes(self.budget)}"
        lines.append(f"peak: {_megabytes(self.schedule.peak)}{budget}; {_megabytes(self.peak)} if all is kept")
        lines.append(
            f"expected time of a round: {1e3 * self.schedule.seconds:,.1f} ms, "
            f"{self._share(self.schedule.seconds):.1f} % of the time with all kept; "
            f"waiting for copies {self._share(self.schedule.stalled):.1f} %, "
            f"recomputing {self._share(self.schedule.recomputed):.1f} %"
        )
        for choice in ("swap", "recompute"):
            largest = sorted(self._chosen(choice), key=lambda buffer: -buffer.size)[:_SHOWN]
            if largest:
                names = "; ".join([f"{buffer.producer} {_megabytes(buffer.size)}" for buffer in largest])
                lines.append(f"largest {_DONE[choice]}: {names}")
        return "\n".join(lines)

    def _chosen(self, choice):
        chosen = zip(self.recording.buffers, self.schedule.choices, strict=True)
        return [buffer for buffer, each in chosen if each == choice]

    def _share(self, seconds):
        return 100 * seconds / self.seconds if self.seconds else 0.0


def plan(recording, budget, bus, *, recompute=True, smallest=0):
    """Returns the fastest :class:`Plan` found that keeps to a budget.

    Args:
        recording: :class:`~mixprec.activation_memory.recording.Recording`.
        budget: largest number of bytes in use on the device; ``None`` for no limit.
        bus: :class:`~mixprec.activation_memory.recording.Bus`.
        recompute: whether buffers may be recomputed.
        smallest: bytes; smaller buffers stay.

    Raises:
        DoesNotFit: no plan keeps to the budget.
    """
    forecast = Forecast(recording, budget, bus)
    can_move = movable(recording, smallest)
    keeping = np.full(len(can_move), KEEP, np.int8)
    memory = forecast.low(keeping)
    peak = int(memory.max(initial=0))
    if peak <= forecast.budget:
        return Plan(forecast.schedule(keeping), budget, recording, forecast.compute, peak)
    low = forecast.low(np.where(can_move, SWAP, KEEP))
    if low.max() > budget:
        raise _refusal(recording, budget, low)
    best = Search(recording, forecast, bus, can_move, recompute).best()
    return Plan(best, budget, recording, forecast.compute, peak)


def least(recording, *, smallest=0):
    """Returns the smallest budget in bytes that a plan can meet: the plan that swaps everything.

    Args:
        recording: :class:`~mixprec.activation_memory.recording.Recording`.
        smallest: bytes; smaller buffers stay.
    """
    forecast = Forecast(recording, None, Bus(1.0, 1.0))  # memory does not depend on the bus
    return int(forecast.low(np.where(movable(recording, smallest), SWAP, KEEP)).max(initial=0))


def _refusal(recording, budget, low):
    number = int(low.argmax())
    event = recording.events[number]
    direction = "forward" if event.is_forward else "backward"
    needed = int(low[number])
    return DoesNotFit(
        f"no plan fits into {_megabytes(budget)}: {event.name} going {direction} takes {_megabytes(needed, up=True)}, "
        "even with all movable buffers elsewhere; this is the smallest possible budget",
        needed,
    )


def _megabytes(size, *, up=False):
    tenths = size / 1e5
    return f"{(math.ceil(tenths) if up else round(tenths)) / 10:,.1f} MB"

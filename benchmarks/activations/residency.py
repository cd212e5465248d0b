"""Memory over time: what a schedule of :mod:`mixprec.activation_memory` predicts, event by event."""

import collections
import dataclasses

KEEP, SWAP, RECOMPUTE = "keep", "swap", "recompute"


@dataclasses.dataclass(frozen=True)
class Curve:
    """The memory of a step.

    Attributes:
        name: for the legend.
        times: seconds at which events begin, and at the end the last one is over.
        memory: bytes in use in each event.
        turn: seconds at which the backward pass begins.
    """

    name: str
    times: tuple
    memory: tuple
    turn: float

    @property
    def peak(self):
        """The most bytes."""
        return max(self.memory)

    @property
    def seconds(self):
        """Of the step."""
        return self.times[-1]


def curve(name, recording, schedule, bus):
    """Returns the :class:`Curve` of a recorded round.

    Args:
        name: of the curve.
        recording: :class:`~mixprec.activation_memory.recording.Recording`.
        schedule: :class:`~mixprec.activation_memory.timetable.Schedule` for it, or a plan.
        bus: :class:`~mixprec.activation_memory.recording.Bus` of the copies.
    """
    needs = _needs(recording, schedule.choices)
    begins, end = _times(recording, schedule, bus, needs)
    memory = _memory(recording, schedule, needs)
    turn = next((at for at, event in zip(begins, recording.events, strict=True) if not event.is_forward), end)
    return Curve(name, (*begins, end), tuple(memory), turn)


def _needs(recording, choices):
    """Returns ``(first, last)`` of each buffer; that another one is computed from it is a need as well."""
    spans = [[buffer.needs[0], buffer.needs[-1]] for buffer in recording.buffers]
    for buffer, choice in zip(recording.buffers, choices, strict=True):
        if choice == RECOMPUTE:
            for source in buffer.recomputation.sources:
                spans[source][0] = min(spans[source][0], buffer.needs[0])
                spans[source][1] = max(spans[source][1], buffer.needs[0])
    return spans


def _memory(recording, schedule, needs):
    count = len(recording.events)
    change = [0] * (count + 1)

    def resident(size, begin, end):
        change[begin] += size
        change[end] -= size

    memory = [event.others for event in recording.events]
    for number, (buffer, choice) in enumerate(zip(recording.buffers, schedule.choices, strict=True)):
        first, last = needs[number]
        if choice == KEEP:
            resident(buffer.size, buffer.made, count)
            continue
        resident(buffer.size, buffer.made, schedule.release[number])
        resident(buffer.size, schedule.back[number] if choice == SWAP else first, last + 1)
        if choice == RECOMPUTE:
            memory[first] += buffer.recomputation.others
    total = 0
    for number in range(count):
        total += change[number]
        memory[number] += total
    return memory


def _times(recording, schedule, bus, needs):
    """Runs the queues of the device and of both copies; returns when events begin, and the end."""
    out, release, back, need, again = (collections.defaultdict(list) for _ in range(5))
    for number, (buffer, choice) in enumerate(zip(recording.buffers, schedule.choices, strict=True)):
        if choice == SWAP:
            out[buffer.made + 1].append(number)
            release[schedule.release[number]].append(number)
            back[schedule.back[number]].append(number)
            need[needs[number][0]].append(number)
        elif choice == RECOMPUTE:
            again[needs[number][0]].append(buffer.recomputation.seconds)
    now = leaving = coming = 0.0
    done, there, begins = {}, {}, []
    for number, event in enumerate(recording.events):
        for each in out[number]:
            done[each] = leaving = max(leaving, now) + bus.latency + recording.buffers[each].size / bus.out
        now = max([now, *(done[each] for each in release[number])])
        for each in sorted(back[number], key=lambda each: needs[each][0]):
            there[each] = coming = max(coming, now) + bus.latency + recording.buffers[each].size / bus.back
        now = max([now, *(there[each] for each in need[number])]) + sum(again[number])
        begins.append(now)
        now += event.seconds
    return begins, now

"""A device that computes in one queue and copies in two others: it runs a round as a plan says, from the rules alone.

Nothing is shared with the prediction of :mod:`mixprec.activation_memory.timetable`.
"""

import dataclasses


@dataclasses.dataclass
class _Operation:
    """What a queue does, after its operation before and after others."""

    seconds: float
    after: list
    end: float | None = None


class Device:
    """Three queues of operations, and memory that is taken and given back in the order in which that is asked for.

    Attributes:
        used: ``{what: bytes}`` in use now.
    """

    def __init__(self):
        self.queues = {"main": [], "out": [], "back": []}
        self.used = {}

    def ask(self, queue, seconds, *after):
        """Asks for an operation that begins when the others are done; returns it."""
        self.queues[queue].append(_Operation(seconds, [each for each in after if each is not None]))
        return self.queues[queue][-1]

    def asked_last(self):
        """The operation that the main queue was asked for last."""
        return self.queues["main"][-1] if self.queues["main"] else None

    def take(self, what, size):
        assert what not in self.used
        self.used[what] = size

    def run(self):
        """Runs all operations, each as early as it may; returns when the main queue is done."""
        places = dict.fromkeys(self.queues, 0)
        while any(places[name] < len(queue) for name, queue in self.queues.items()):
            moved = False
            for name, queue in self.queues.items():
                while places[name] < len(queue):
                    operation = queue[places[name]]
                    if any(each.end is None for each in operation.after):
                        break
                    begin = queue[places[name] - 1].end if places[name] else 0.0
                    begin = max([begin, *[each.end for each in operation.after]])
                    operation.end = begin + operation.seconds
                    places[name] += 1
                    moved = True
            assert moved, "the queues wait for each other"
        return self.queues["main"][-1].end if self.queues["main"] else 0.0


def needs_of(recording, choices):
    """Returns a list of the needs of each buffer, with those for what is computed again from it."""
    needs = [set(buffer.needs) for buffer in recording.buffers]
    for buffer, choice in zip(recording.buffers, choices, strict=True):
        if choice == "recompute":
            for source in buffer.recomputation.sources:
                assert choices[source] != "recompute"
                needs[source].add(buffer.needs[0])
    return list(map(sorted, needs))


def simulate(recording, bus, choices, release, back):
    """Returns the seconds of a round, and a list of the bytes in use at each event."""
    device = Device()
    memory = []
    out, fetched = {}, {}
    needs = needs_of(recording, choices)
    numbers = range(len(recording.buffers))
    swapped = [b for b in numbers if choices[b] == "swap"]
    repeated = [b for b in numbers if choices[b] == "recompute"]
    for b in swapped:
        assert recording.buffers[b].held < release[b] <= back[b] <= needs[b][0]
    for b in repeated:
        assert release[b] == recording.buffers[b].held + 1 < needs[b][0]
        assert back[b] is None
    for e, event in enumerate(recording.events):
        for b in swapped:
            buffer = recording.buffers[b]
            if buffer.made == e - 1:
                out[b] = device.ask("out", bus.latency + buffer.size / bus.out, device.asked_last())
        for b in numbers:
            if release[b] == e:
                if choices[b] == "swap":
                    device.ask("main", 0.0, out[b])
                del device.used[b]
        for b in sorted([b for b in swapped if back[b] == e], key=lambda b: (needs[b][0], b)):
            size = recording.buffers[b].size
            device.take(b, size)
            fetched[b] = device.ask("back", bus.latency + size / bus.back, device.asked_last(), out[b])
        for b in swapped:
            if needs[b][0] == e:
                device.ask("main", 0.0, fetched[b])
        for b in repeated:
            if needs[b][0] == e:
                again = recording.buffers[b].recomputation
                assert all(source in device.used for source in again.sources)
                device.take(b, recording.buffers[b].size)
                device.ask("main", again.seconds)
        for b in numbers:
            if recording.buffers[b].made == e:
                device.take(b, recording.buffers[b].size)
            assert e not in needs[b] or b in device.used
        memory.append(event.others + sum(device.used.values()))
        device.ask("main", event.seconds)
        for b in swapped + repeated:
            if needs[b][-1] == e:
                del device.used[b]
    return device.run(), memory

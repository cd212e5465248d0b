"""Recordings of networks of several kinds with random sizes and times."""

from mixprec.activation_memory.recording import Buffer, Bus, Event, Recomputation, Recording

KINDS = ("chain", "residual", "u-net", "recurrent")


def _inputs(kind, count, random):
    """Returns the numbers of the functions whose outputs each function reads."""
    found = [[]]
    for i in range(1, count):
        sources = {i - 1}
        if kind == "residual" and i >= 4 and i % 3 == 1:
            sources.add(i - 3)
        elif kind == "u-net" and i > count // 2:
            sources.add(count - 1 - i)
        elif kind == "recurrent":
            sources = {i - 1, 0} if i % 3 == 0 else {i - 1} if i % 3 == 1 else {i - 1, max(0, i - 3)}
        found.append(sorted(sources))
    if kind == "recurrent":
        found[-1] = sorted({*found[-1], *random.sample(range(count - 1), min(4, count - 1))})
    return found


def random_recording(kind, random, largest=22):
    """Returns a recording.

    Args:
        kind: one of :data:`KINDS`.
        random: ``random.Random``.
        largest: number of functions at the most.
    """
    count = random.randint(4, largest)
    inputs = _inputs(kind, count, random)
    seconds = [random.lognormvariate(0, 1) for _ in range(count)]
    scale = random.choice([0, 10, 300])
    others = [random.randint(0, scale) for _ in range(2 * count)]
    names = [random.choice(["convolution", "relu", "normalization"]) for _ in range(count)]
    events = [Event(names[i], True, seconds[i], others[i]) for i in range(count)]
    slower = random.uniform(1, 3)
    events += [Event(names[i], False, slower * seconds[i], others[i]) for i in reversed(range(count))]
    readers = [set() for _ in range(count)]
    for i in range(count):
        if random.random() < 0.4:
            readers[i].add(i)
        for source in inputs[i]:
            if random.random() < 0.7:
                readers[source].add(i)
    numbers, buffers = {}, []
    for i in range(count):
        if not readers[i]:
            continue
        users = [j for j in range(count) if i in inputs[j]]
        again = None
        if inputs[i] and all(source in numbers for source in inputs[i]) and random.random() < 0.6:
            sources = tuple([numbers[source] for source in inputs[i]])
            again = Recomputation(seconds[i], sources)
            random.choice([0, 0, 20])  # what follows in a seed is what the bounds of tests were found with
        held = max([i, *users])
        if random.random() < 0.05:
            held = random.randint(held, count - 1)  # a variable of the user
        numbers[i] = len(buffers)
        needs = tuple(sorted([2 * count - 1 - j for j in readers[i]]))
        is_input = any(names[j] == "convolution" for j in readers[i] if j != i)
        size = max(1, round(100 * random.lognormvariate(0, 1)))
        buffers.append(Buffer(size, f"{names[i]} {i}", i, held, needs, again, is_input))
    return Recording(tuple(events), tuple(buffers))


def random_bus(recording, random):
    """Returns a bus that takes between a twentieth and five times as long for all buffers as the device computes."""
    size = sum([buffer.size for buffer in recording.buffers]) or 1
    seconds = sum([event.seconds for event in recording.events])
    speed = size / seconds / 20 ** random.uniform(-1, 0.5)
    return Bus(speed, speed * random.uniform(0.5, 2), random.choice([0.0, 0.01]) * seconds / len(recording.events))

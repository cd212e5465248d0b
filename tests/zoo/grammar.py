"""Random small networks: programs that are drawn by hypothesis, and the model that runs one.

A program is a list of steps ``(operation, sources, parameters)``. Each step appends a tensor; a source is the number of
an earlier one, 0 being the images. What is drawn always fits: shapes are kept while drawing.
"""

import chainer
import chainer.functions as F
import chainer.links as L
from hypothesis import strategies as st

IMAGES = (4, 3, 6, 6)
_MOST_CHANNELS = 12


class Net(chainer.Chain):
    """Runs a program; its result are all tensors that the program names as results, and logits of the last one.

    Args:
        program: see above.
        results: numbers of tensors that are returned.
        head: ``"pool"``, ``"flatten"`` or ``"none"``.
    """

    def __init__(self, program, results, head):
        super().__init__()
        self.program, self.results, self.head = program, results, head
        with self.init_scope():
            for number, (operation, _, how) in enumerate(program):
                if operation in _LINKS:
                    setattr(self, f"link{number}", _LINKS[operation](**how))
            if head != "none":
                self.fc = L.Linear(None, 3)

    def forward(self, x):
        self.kept = []
        tensors = [x]
        for number, (operation, sources, how) in enumerate(self.program):
            inputs = [tensors[source] for source in sources]
            if operation in _LINKS:
                tensors.append(getattr(self, f"link{number}")(*inputs))
            else:
                tensors.append(_FUNCTIONS[operation](self, *inputs, **how))
        h = tensors[-1]
        found = [tensors[number] for number in self.results]
        del tensors, inputs
        if self.head == "pool":
            h = F.average_pooling_2d(h, h.shape[2:])
        return found if self.head == "none" else [*found, self.fc(h)]


class Squeeze(chainer.Chain):
    """Squeeze and excitation."""

    def __init__(self, channels, way):
        super().__init__()
        self.way = way
        with self.init_scope():
            self.down = L.Linear(channels, 3)
            self.up = L.Linear(3, channels)

    def forward(self, h):
        s = F.sigmoid(self.up(F.relu(self.down(F.average(h, axis=(2, 3))))))
        if self.way == "scale":
            return F.scale(h, s, axis=0)
        s = F.reshape(s, (*s.shape, 1, 1))
        return h * s if self.way == "times" else F.broadcast_to(s, h.shape) * h


def _add(model, a, b, in_place):
    if in_place:
        a += b
        return a
    return a + b


def _keep(model, h):
    model.kept.append(h)
    return h


def _read(model, h):
    return h * float(1 + abs(h.array).mean())


def _constant(model, h):
    with chainer.no_backprop_mode():
        return F.relu(h) + 1


def _recalled(model, h):
    return F.forget(lambda x: F.relu(x) + F.tanh(x), h)


_LINKS = {
    "convolution": L.Convolution2D,
    "deconvolution": L.Deconvolution2D,
    "normalization": L.BatchNormalization,
    "squeeze": Squeeze,
    "linear over pixels": L.Convolution2D,
}
_FUNCTIONS = {
    "relu": lambda model, h: F.relu(h),
    "leaky relu": lambda model, h: F.leaky_relu(h),
    "tanh": lambda model, h: F.tanh(h),
    "clipped relu": lambda model, h: F.clipped_relu(h, 1.0),
    "add": _add,
    "subtract": lambda model, a, b: a - b,
    "multiply": lambda model, a, b: a * F.sigmoid(b),
    "concat": lambda model, *hs: F.concat(hs),
    "max pooling": lambda model, h, **how: F.max_pooling_2d(h, **how),
    "average pooling": lambda model, h, **how: F.average_pooling_2d(h, **how),
    "dropout": lambda model, h: F.dropout(h, 0.0),
    "response": lambda model, h: F.local_response_normalization(h, n=3),
    "split": lambda model, h, at: F.split_axis(h, [at], axis=1)[1],
    "slice": lambda model, h, step: h[:, ::step],
    "keep": _keep,
    "read": _read,
    "forget": _recalled,
    "without backprop": _constant,
}


@st.composite
def networks(draw, most=12):
    """Draws ``(program, results, head)``."""
    shapes = [IMAGES[1:]]
    program = []
    _append(program, shapes, "convolution", (0,), *_convolution(draw, shapes[0]))
    for _ in range(draw(st.integers(1, most))):
        step = _draw_step(draw, shapes, program)
        if step is not None:
            _append(program, shapes, *step)
    numbers = st.lists(st.integers(1, len(program)), unique=True, max_size=2)
    head = draw(st.sampled_from(["pool", "flatten", "none"]))
    results = draw(numbers)
    if head == "none" and not results:
        results = [len(program)]
    return program, results, head


def _append(program, shapes, operation, sources, how, shape):
    program.append((operation, sources, how))
    shapes.append(shape)


def _draw_step(draw, shapes, program):
    # Mostly a chain: the last tensor; now and then an earlier one, which branches.
    last = len(shapes) - 1
    source = last if draw(st.integers(0, 4)) else draw(st.integers(1, last))
    shape = c, height, width = shapes[source]
    same = [number for number in range(1, len(shapes)) if shapes[number] == shape]
    beside = [n for n in range(1, len(shapes)) if shapes[n][1:] == shape[1:] and shapes[n][0] + c <= _MOST_CHANNELS]
    after_normalization = program[source - 1][0] == "normalization"
    # What follows a normalization is drawn more often from what may be fused with it.
    likely = (
        ["relu", "relu", "add", "keep", "read", "without backprop"] if after_normalization else ["normalization"] * 3
    )
    operation = draw(st.sampled_from(likely + sorted({*_LINKS, *_FUNCTIONS})))
    if operation in ("convolution", "linear over pixels"):
        return operation, (source,), *_convolution(draw, shape)
    if operation == "deconvolution":
        if height > 6:
            return None
        how = {"in_channels": c, "out_channels": 4, "ksize": 2, "stride": 2}
        return operation, (source,), how, (4, 2 * height, 2 * width)
    if operation == "normalization":
        return operation, (source,), {"size": c}, shape
    if operation == "squeeze":
        way = draw(st.sampled_from(["scale", "times", "broadcast"]))
        return operation, (source,), {"channels": c, "way": way}, shape
    if operation in ("add", "subtract", "multiply"):
        other = draw(st.sampled_from(same))
        if operation == "subtract" and other == source:
            return None  # of zeros, a normalization is as exact as its mean
        pair = (source, other) if draw(st.booleans()) else (other, source)
        return operation, pair, {"in_place": draw(st.booleans())} if operation == "add" else {}, shape
    if operation == "concat":
        if not beside:
            return None
        other = draw(st.sampled_from(beside))
        return operation, (other, source), {}, (c + shapes[other][0], height, width)
    if operation in ("max pooling", "average pooling"):
        if min(height, width) < 4:
            return None
        how = draw(st.sampled_from([{"ksize": 2, "stride": 2}, {"ksize": 3, "stride": 1, "pad": 1}]))
        return operation, (source,), how, (c, height // how["stride"], width // how["stride"])
    if operation == "split":
        return (operation, (source,), {"at": c // 2}, (c - c // 2, height, width)) if c > 1 else None
    if operation == "slice":
        return operation, (source,), {"step": 2}, ((c + 1) // 2, height, width)
    return operation, (source,), {}, shape


def _convolution(draw, shape):
    c, height, width = shape
    ksize, stride = draw(st.sampled_from([(1, 1), (3, 1), (3, 2)]))
    stride = stride if min(height, width) >= 6 else 1
    groups = draw(st.sampled_from([1, 1, c]))
    channels = c if groups == c else draw(st.sampled_from([4, 5, 8]))
    how = {"in_channels": c, "out_channels": channels, "ksize": ksize, "stride": stride, "pad": ksize // 2}
    how |= {"groups": groups, "nobias": draw(st.booleans())}
    return how, (channels, (height - 1) // stride + 1, (width - 1) // stride + 1)

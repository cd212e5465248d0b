"""Random programs of normalizations, ReLUs, sums and looks at them, another one in each call, beside plain Chainer."""

import copy

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import mixprec
from tests.cases import tries
from tests.rewrite.twins import WIDTH, images, new, step

SHAPE = (2, 3, 3, 3)
CALLS = 4


def _pattern(h):
    return np.linspace(-1, 1, h.size, dtype=np.float32).reshape(h.shape)


LOOKS = {
    "array": lambda m, h: h.array,
    "copy": lambda m, h: m.notes.append(copy.copy(h)),
    "kept": lambda m, h: m.notes.append(h),
    "shape": lambda m, h: (h.shape, h.xp, len(h)),
    "node": lambda m, h: h.node,
    "unchained": lambda m, h: h.unchain_backward(),
    "name": lambda m, h: setattr(h, "name", "h"),
    "gradient": lambda m, h: chainer.grad([F.sum(F.sigmoid(h) * _pattern(h))], [h]),
}


def _normalized(m, values, x, number):
    values.append((m.bn1, m.bn2, m.bn3)[number % 3]((m.conv1, m.conv2, m.conv3)[number % 3](x)))


def _evaluated(m, values, x, number):
    """Without a graph: Chainer's own gradients of it are wrong once the statistics have moved."""
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        _normalized(m, values, x, number)


def _rectified(m, values, x, number):
    values.append(F.relu(x))


def _rectified_without_backprop(m, values, x, number):
    with chainer.no_backprop_mode():
        values.append(F.relu(x))


def _added(m, values, x, number):
    values.append(x + values[number % len(values)])


def _added_in_place(m, values, x, number):
    place = next(place for place, value in enumerate(values) if value is x)
    x += values[number % len(values)]
    values[place] = x


def _sigmoid(m, values, x, number):
    values.append(F.sigmoid(x))


def _convolved(m, values, x, number):
    values.append((m.conv1, m.conv2, m.conv3)[number % 3](x))


def _dropped(m, values, x, number):
    if len(values) > 1:
        values.pop(number % len(values))


def _forgotten(m, values, x, number):
    """With links of its own: F.forget loses gradients of parameters that are used outside as well."""
    values.append(F.forget(lambda x: F.relu(m.bn4(m.conv4(x))), x))


def _of_two(m, values, x, number):
    """The end of a residual block; some of what lies between is taken later."""
    one = m.bn1(m.conv1(x))
    other = m.bn2(m.conv2(values[number % len(values)]))
    total = one + other
    values += [each for bit, each in enumerate((one, other, total)) if number >> bit & 1] + [F.relu(total)]


def _pooled(m, values, x, number):
    """The same for a max pooling, with zeros beside it so that all has one shape."""
    one = m.bn3(x)
    relu = F.relu(one)
    for _ in range(1 + (number >> 2 & 1)):  # two take one ReLU
        values.append(F.pad(F.max_pooling_2d(relu, 3, 2, 1), ((0, 0), (0, 0), (0, 1), (0, 1)), "constant"))
    values += [each for bit, each in enumerate((one, relu)) if number >> bit & 1][::-1]


def _looked_at(m, values, x, number):
    list(LOOKS.values())[number % len(LOOKS)](m, x)


STEPS = [
    *(_normalized, _normalized, _rectified, _rectified, _added, _added_in_place, _sigmoid, _convolved, _dropped),
    *(_rectified_without_backprop, _evaluated, _forgotten, _looked_at, _looked_at, _of_two, _of_two, _pooled),
]
# A step, which of the values it takes (the last one is what people take most), and a number.
INSTRUCTIONS = st.tuples(st.sampled_from(STEPS), st.sampled_from([-1, -1, -1, 0, 1, 2, 3]), st.integers(0, 23))
PROGRAMS = st.lists(INSTRUCTIONS, min_size=2, max_size=10)
# In each call, what takes the place of an instruction, or nothing.
CHANGES = st.lists(st.none() | st.tuples(st.integers(0, 9), INSTRUCTIONS), min_size=CALLS, max_size=CALLS)


def run(m, x):
    del m.notes[:]
    values = [m.stem(x)]
    for instruct, place, number in m.program:
        instruct(m, values, values[place % len(values)], number)
    return (*values[-2:], F.sigmoid(sum(values, 0.0) * 0.1))


def model():
    m = new(run)
    with m.init_scope():
        m.conv4 = L.Convolution2D(WIDTH, WIDTH, 1, nobias=True)
        m.bn4 = L.BatchNormalization(WIDTH)
    return m


def _assert_same(found, expected):
    assert found.keys() == expected.keys()
    gradients = [np.abs(a).max() for name, a in expected.items() if name.startswith("gradient") and a is not None]
    for name, array in expected.items():
        assert (found[name] is None) == (array is None), name
        if array is not None:
            # A gradient may be a difference of large ones.
            least = 0.02 * max(gradients) if name.startswith("gradient") else 0.0
            error = np.abs(np.float64(found[name]) - array).max()
            assert error <= 1e-4 * max(np.abs(array).max(), least) + 1e-9, name


# Always the same examples: in others a value may be so close to 0 that rounding decides what its ReLU is.
@settings(max_examples=tries(60), derandomize=True)
@given(PROGRAMS, CHANGES, st.booleans())
def test_random_programs(program, changes, with_example):
    plain, converted = model(), model()
    plain.program = converted.program = program
    mixprec.convert(converted, images(0, SHAPE) if with_example else None, compute="float32")
    for call, change in enumerate(changes):
        current = list(program)
        if change is not None:
            current[change[0] % len(current)] = change[1]
        plain.program = converted.program = current
        with chainer.using_config("train", call != 2):
            expected, found = step(plain, images(call, SHAPE)), step(converted, images(call, SHAPE))
        _assert_same(found, expected)
        for kept, same in zip(converted.notes, plain.notes, strict=True):
            np.testing.assert_allclose(kept.array, same.array, atol=1e-4)

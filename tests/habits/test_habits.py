"""Habits of programs in Chainer hold under the wrapper bit for bit, and in a converted model to its rounding."""

import functools

import numpy as np
import pytest

from tests.cases import first, in_turn
from tests.habits import images, loops, sequences, several, trainers, vectors  # noqa: F401  (they register habits)
from tests.habits.running import HABITS, Setting, run

SETTINGS = {
    "wrapped": Setting(loss_scale="dynamic"),
    "float16": Setting(options={}, epsilon=2**-10),
    "float16, NCHW": Setting(options={"layout": "nchw"}, epsilon=2**-10),
    "bfloat16": Setting(loss_scale=None, options={"compute": "bfloat16"}, epsilon=2**-7),
}
WRAPPED = [(name, "wrapped") for name, each in HABITS.items() if "wrapped" not in each.without]
CONVERTED = [  # in one way each
    (name, setting)
    for name, setting in in_turn(HABITS, [setting for setting in SETTINGS if setting != "wrapped"])
    if setting not in HABITS[name].without
]


@functools.cache
def _plain(name):
    return run(name, Setting(wrapped=False))


@pytest.mark.parametrize(("name", "setting"), [*first(30, WRAPPED), *first(20, CONVERTED)])
def test_a_habit(name, setting):
    """Everything is within its share of the largest value of its kind, or of its own size, whichever is more."""
    bound = HABITS[name].roundings * SETTINGS[setting].epsilon
    for found, expected in zip(run(name, SETTINGS[setting]), _plain(name), strict=True):
        assert found.keys() == expected.keys()
        largest = max((np.linalg.norm(value) for value in expected.values()), default=0)
        for key, value in expected.items():
            assert found[key].shape == value.shape, key
            error = np.linalg.norm(found[key] - value)
            assert error <= bound * (np.linalg.norm(value) + largest / 16), key

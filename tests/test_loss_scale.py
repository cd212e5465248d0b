"""Loss scales: exact sequences, limits, state, and errors that name the argument."""

import functools
import math

import numpy as np
import pytest
from chainer import serializers
from hypothesis import given
from hypothesis import strategies as st

from mixprec import DynamicLossScale, NoLossScale, StaticLossScale
from tests.stand_ins import device_stand_in


class GradScalerReference:
    """The update of PyTorch's GradScaler (``_amp_update_scale_``), written down from its documentation."""

    def __init__(self, init, growth, backoff, interval):
        self.scale, self.growth, self.backoff, self.interval = init, growth, backoff, interval
        self.growth_tracker = 0

    def step(self, found_inf):
        if found_inf:
            self.scale *= self.backoff
            self.growth_tracker = 0
        else:
            self.growth_tracker += 1
            if self.growth_tracker == self.interval:
                self.scale *= self.growth
                self.growth_tracker = 0
        return self.scale


class MegatronReference(GradScalerReference):
    """The dynamic scaler of Megatron-LM, from its description: GradScaler, tolerant by hysteresis, between limits."""

    def __init__(self, init, growth, backoff, interval, floor, cap, hysteresis):
        super().__init__(init, growth, backoff, interval)
        self.floor, self.cap = floor, cap
        self.hysteresis = self.tolerated = hysteresis

    def step(self, found_inf):
        if found_inf:
            self.growth_tracker = 0
            self.tolerated -= 1
            if self.tolerated > 0:
                return self.scale
            self.scale = max(self.scale * self.backoff, self.floor)
            return self.scale
        before = self.scale
        super().step(False)
        if self.growth_tracker == 0:
            self.tolerated = self.hysteresis
            self.scale = min(before * self.growth, self.cap)
        return self.scale


@given(
    overflows=st.lists(st.booleans(), max_size=200),
    interval=st.integers(1, 10),
    growth=st.sampled_from([2.0, 4.0]),
    backoff=st.sampled_from([0.5, 0.25]),
)
def test_without_limits_the_sequence_is_that_of_pytorch(overflows, interval, growth, backoff):
    """Promise 1: exactly, under any pattern of overflows."""
    scale = DynamicLossScale(2.0**16, growth, backoff, interval, floor=None, cap=None)
    reference = GradScalerReference(2.0**16, growth, backoff, interval)
    for overflow in overflows:
        scale.adjust(overflow)
        assert scale.value == reference.step(overflow)


@given(
    overflows=st.lists(st.booleans(), max_size=200),
    interval=st.integers(1, 5),
    hysteresis=st.integers(1, 4),
    floor=st.integers(-3, 4),
    cap=st.integers(4, 9),
    where=st.sampled_from([bool, np.bool_, np.array, device_stand_in.array]),
)
def test_the_sequence_is_exact_at_floor_and_cap_and_with_hysteresis(overflows, interval, hysteresis, floor, cap, where):
    """Promise 1; the outcome of a step being a bool, a NumPy number or an array, also one on a device, unread."""
    arguments = 2.0**4, 2.0, 0.5, interval, 2.0**floor, 2.0**cap, hysteresis
    scale, reference = DynamicLossScale(*arguments), MegatronReference(*arguments)
    in_row = 0
    for overflow in overflows:
        device_stand_in.DeviceArray.reads = 0
        scale.adjust(where(overflow))
        assert device_stand_in.DeviceArray.reads == 0
        in_row = in_row + 1 if overflow else 0
        assert (scale.value, scale.overflows_in_row) == (reference.step(overflow), in_row)


NEW_STATES = [
    functools.partial(DynamicLossScale, init=2.0**8, interval=3, hysteresis=2, patience=4),
    functools.partial(NoLossScale, patience=4),
    functools.partial(StaticLossScale, 8.0, patience=4),
]


@pytest.mark.parametrize("new", NEW_STATES)
@given(before=st.lists(st.booleans(), max_size=30), after=st.lists(st.booleans(), max_size=30))
def test_every_field_of_the_state_survives_a_snapshot(new, before, after):
    original, restored = new(), new()
    for overflow in before:
        original.adjust(overflow)
    saved = serializers.DictionarySerializer()
    original.serialize(saved)
    restored.serialize(serializers.NpzDeserializer(saved.target))
    assert restored.arrays == original.arrays
    for overflow in after:
        original.adjust(overflow)
        restored.adjust(overflow)
        assert (restored.value, restored.exhausted) == (original.value, original.exhausted)


IMPOSSIBLE = [
    ({"init": 3.0}, "init must be a positive power of two from .*; found 3.0"),
    ({"init": math.inf}, "init must be"),
    ({"growth": 1}, "growth must be greater than 1"),
    ({"growth": 3}, "growth must be a positive power of two"),
    ({"backoff": 1.0}, "backoff must be between 0 and 1"),
    ({"interval": 0}, "interval must be a whole number from 1 to 2147483647; found 0"),
    ({"hysteresis": 0}, "hysteresis must be"),
    ({"patience": 0}, "patience must be"),
    ({"floor": 2.0**17}, "floor must not be greater than init"),
    ({"cap": 2.0**15}, "cap must not be less than init"),
    ({"floor": 0.3}, "floor must be a positive power of two"),
    ({"cap": -1}, "cap must be a positive power of two"),
]


@pytest.mark.parametrize(("arguments", "message"), IMPOSSIBLE)
def test_impossible_settings_are_errors_that_name_the_argument(arguments, message):
    with pytest.raises(ValueError, match=message):
        DynamicLossScale(**arguments)


def _fixed(**settings):
    return NoLossScale(**settings), StaticLossScale(8.0, **settings)


@pytest.mark.parametrize("scale", _fixed())
def test_constant_scales_do_not_move(scale):
    value = scale.value
    for overflow in (True, False, True):
        scale.adjust(overflow)
    assert scale.value == value
    assert scale.patience == DynamicLossScale().patience == 50


@given(
    overflows=st.lists(st.booleans(), max_size=30),
    where=st.sampled_from([bool, np.bool_, np.array, device_stand_in.array]),
)
def test_all_scales_count_overflows_in_a_row(overflows, where):
    """The count goes where the outcome of a step is, and nothing is read for it."""
    for scale in (*_fixed(patience=3), DynamicLossScale(patience=3)):
        in_row = 0
        for overflow in overflows:
            device_stand_in.DeviceArray.reads = 0
            scale.adjust(where(overflow))
            assert device_stand_in.DeviceArray.reads == 0
            in_row = in_row + 1 if overflow else 0
            assert (scale.overflows_in_row, scale.exhausted) == (in_row, in_row >= 3)
        scale.reset()
        assert scale.overflows_in_row == 0


def test_a_bool_is_taken_where_the_state_is_on_a_device(monkeypatch):
    scale, numpys = DynamicLossScale(2.0**4), np.where
    scale.adjust(device_stand_in.array(True))
    monkeypatch.setattr(np, "where", lambda condition, a, b: numpys(condition.astype(bool), a, b))  # as in CuPy
    scale.adjust(True)
    assert (scale.value, scale.overflows_in_row) == (4.0, 2)


@pytest.mark.parametrize("scale", [*_fixed(patience=None), DynamicLossScale(patience=None)])
def test_patience_can_be_switched_off(scale):
    for _ in range(60):
        scale.adjust(True)
    assert (scale.overflows_in_row, scale.exhausted) == (60, False)


@pytest.mark.parametrize("make", [NoLossScale, functools.partial(StaticLossScale, 2)])
@pytest.mark.parametrize("patience", [0, 2**31, 1.5, "50", True])
def test_the_patience_of_constant_scales_is_a_whole_number(make, patience):
    with pytest.raises((TypeError, ValueError), match="patience must be a whole number from 1 to 2147483647; found"):
        make(patience=patience)

"""The modelled time of a step: by hand for a small record, and the recorded step by its own model."""

import pytest

from benchmarks.profile import kinds
from benchmarks.step import model
from benchmarks.step.launches import Launch
from benchmarks.step.model import Model, model_of

BATCH, FEWER = 100, 25
BANDWIDTH, PRODUCT, FIXED, REST, CAPTURED = 1e12, 1e14, 2e-6, 5e-5, 0.8
IMAGE = 2 * 16 * 16 * 8  # bytes
PASS = BATCH * IMAGE / BANDWIDTH
OPERATIONS = 2 * 16 * 16 * 8 * 8 * 9  # of a 3x3 filter on an image
STEM = "100x32x32x3", "8x7x7x3"
FOLDED = 100 * 2 * (32 * 32 * 3 + 16 * 16 * 16) / BANDWIDTH


def _row(layer, kind, shapes, floor, seconds, limit="bytes"):
    numbers = {"floor": floor * 1e6, "microseconds": seconds * 1e6, "limit": limit, "calls": 1}
    return {"layer": layer, "kind": kind, "shapes": shapes, **numbers}


def _profile(rows):
    """A record whose step takes what its rows and the rest do."""
    step = sum(row["microseconds"] for row in rows) + REST * 1e6
    return {"settings": {"batch": BATCH}, "rows": rows, "rest": REST * 1e6, "step": step}


@pytest.fixture
def found(monkeypatch):
    monkeypatch.setattr(model, "_SMALL", 0.1 * PASS)
    x, w = "100x16x16x8", "8x3x3x8"
    product = BATCH * OPERATIONS / PRODUCT
    rows = [
        _row("conv1", kinds.CONV_FPROP, " ".join(STEM), PASS, 3 * FIXED + FOLDED + 7e-6),
        _row("bn1", kinds.BN_FORWARD, f"{x} 8", 2 * PASS, 2 * FIXED + 3 * PASS / 0.5),
        _row("conv2", kinds.CONV_FPROP, f"{x} {w}", product, FIXED + product / 0.25, "operations"),
        _row("bn2", kinds.BN_BACKWARD, f"{x} {x} 8", 3 * PASS, 2 * FIXED + 5 * PASS / 0.8),
        _row("conv2", kinds.CONV_WGRAD, f"{x} {x}", product, 9e-6, "operations"),
        _row("conv2", kinds.GRADIENT_SUM, f"{x} {x}", 3 * PASS, FIXED + 3 * PASS),
        _row("fc", kinds.LOSS, "100x10", PASS / 20, 50e-6),  # too small to say a share
        _row("(step)", kinds.UPDATE, "", 10 * PASS, 3 * FIXED + 20 * PASS),
    ]
    untuned = _profile(rows)
    copied = 2 * BATCH * 2 * 32 * 32 * 3 / BANDWIDTH
    watched = untuned["step"] / 1e6 + copied
    update = rows[-1]["microseconds"] / 1e6
    in_proportion = watched - update - REST - 7 * FIXED
    fewer = update + REST + 7 * FIXED + in_proportion * FEWER / BATCH
    return model_of(_profile(rows), untuned, {BATCH: CAPTURED * watched, FEWER: CAPTURED * fewer})


def test_what_is_found_in_records(found):
    measured = (found.bandwidth, found.product, found.fixed, found.rest, found.captured)
    assert measured == pytest.approx((BANDWIDTH, PRODUCT, FIXED, REST, CAPTURED))
    assert found.batch == BATCH


def test_a_convolution_of_the_record_takes_its_time_there(found):
    """It is the layer's own, as gradients of two layers can have the same shapes. Only ``fixed`` is for any batch."""
    launch = Launch(kinds.CONV_WGRAD, "conv_wgrad", 1, 0, 1, 1, ((16, 16, 8), (8, 3, 3, 8)))
    assert found.knows(launch)
    assert found.seconds(launch, BATCH) == pytest.approx(9e-6)
    assert found.seconds(launch, FEWER) == pytest.approx(FIXED + (9e-6 - FIXED) / 4)


def test_folding_is_apart_from_the_first_convolution(found):
    """In the record it was in the time of that; it takes as long as a copy of its bytes."""
    launch = Launch(kinds.CONV_FPROP, "conv_fprop", 1, 0, 1, 1, ((19, 19, 16), (8, 4, 4, 16)))
    assert found.seconds(launch, BATCH) == pytest.approx(FIXED + 7e-6)
    folding = Launch(kinds.CONV_FPROP, "conv_fprop", 1000.0)
    assert found.seconds(folding, BATCH) == pytest.approx(FIXED + 1e5 / BANDWIDTH)


SHARES = [
    (kinds.BN_FORWARD, 0.5),  # of the passes that it made: x twice, as no convolution had taken its sums
    (kinds.BN_BACKWARD, 0.8),  # x and dy twice
    (kinds.UPDATE, 0.5),
    (kinds.GRADIENT_SUM, 1),
    (kinds.LOSS, 1),
    (kinds.POOLING, 1),  # no row
]


@pytest.mark.parametrize(("kind", "share"), SHARES)
def test_other_launches_have_the_share_of_their_kind(found, kind, share):
    launch = Launch(kind, "it", bytes=2 * IMAGE, fixed=500.0)
    assert found.seconds(launch, FEWER) == pytest.approx(FIXED + (2 * IMAGE * FEWER + 500) / BANDWIDTH / share)
    assert found.seconds(Launch(kind, "it"), FEWER) == pytest.approx(FIXED)


def test_other_convolutions_have_it_too(found):
    """Bytes or operations, whichever takes longer."""
    launch = Launch(kinds.CONV_FPROP, "conv_fprop", 10, 0, 0, OPERATIONS, ((16, 16, 8), (8, 3, 3, 4)))
    assert not found.knows(launch)
    assert found.seconds(launch, BATCH) == pytest.approx(FIXED + BATCH * OPERATIONS / PRODUCT / 0.25)


def test_a_share_is_that_of_the_rows_of_most_similar_time():
    rows = {kinds.POOLING: [(1.0, 2.0)] * 5 + [(100.0, 100.0)] * 5}
    known = Model(1.0, 1.0, 1, 0.0, 0.0, 1.0, {}, rows)
    assert [known.seconds(Launch(kinds.POOLING, "it", each), 1) for each in (2.0, 50.0)] == [4.0, 50.0]


def test_a_step_is_captured(found):
    launches = [Launch(kinds.GRADIENT_SUM, "add", 3 * IMAGE), Launch(kinds.GRADIENT_SUM, "add", 3 * IMAGE)]
    seconds = found.by_kind(launches, BATCH)
    expected = {kinds.GRADIENT_SUM: CAPTURED * 2 * (FIXED + 3 * PASS), model.OUTSIDE: CAPTURED * REST}
    assert seconds == pytest.approx(expected)
    *_, line = found.text(launches, BATCH).splitlines()
    taken = sum(expected.values())
    rate = f"{1e3 * taken:.1f} ms, {BATCH / taken:,.0f} images/s"
    assert line == f"model, by the rates of 2026-11-26 on an H100: {rate}; a model, not a measurement"


def test_the_records_of_an_h100():
    """Rates as the records' own tables had them; batch normalizations together take what they took."""
    found = model.of_h100()
    assert (found.batch, round(found.bandwidth / 1e12, 2), round(found.product / 1e12)) == (256, 3.01, 758)
    assert found.fixed == pytest.approx(3.6e-6, rel=0.02)
    assert found.captured == pytest.approx(0.978, abs=0.001)
    for kind in (kinds.BN_FORWARD, kinds.BN_BACKWARD):
        rows = found.rows[kind]
        modelled = sum(least / found._share(kind, least) for least, _ in rows)
        assert modelled == pytest.approx(sum(taken for _, taken in rows), rel=0.02)

"""The measured half of ``scripts/benchmark.py scaling``: processes under mpiexec, ratios, and the whole command."""

import dataclasses
import importlib.util
import json
import os
import time

import pytest

from benchmarks.scaling import measured_scaling, rank_processes, rank_steps
from benchmarks.scaling.measured_scaling import STRONG, WEAK, Arm, Measured, arms_of, rows_of
from benchmarks.scaling.rank_processes import RankError, Ranks
from benchmarks.scaling.rank_steps import MIXPREC, PLAIN, WRAPPED
from benchmarks.scaling.traced_sums import Trace, under_way
from mixprec.distributed import exchange, mpi_transport
from models import MODELS
from scripts import benchmark

pytestmark = pytest.mark.slow

needs_mpi = pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not installed: extra mpi")


# Processes


def _rank():
    from mpi4py import MPI

    return MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, os.environ["OPENBLAS_NUM_THREADS"]


def _sum(number):
    from mpi4py import MPI

    return MPI.COMM_WORLD.allreduce(number + MPI.COMM_WORLD.rank)


def _fail_on_rank_1():
    """The others wait for it in MPI."""
    if _rank()[0] == 1:
        raise ValueError("as planned\nand more")
    _sum(0)


def _die_on_rank_1():
    if _rank()[0] == 1:
        os.write(2, b"the last words\n")
        os._exit(3)
    _sum(0)


@needs_mpi
def test_ranks_do_what_they_are_asked_in_their_order():
    with Ranks(2) as ranks:
        assert ranks.call(_rank) == [(0, 2, "1"), (1, 2, "1")]
        ranks.ask(_sum, 10)
        assert ranks.answers() == [21, 21]


@needs_mpi
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (_fail_on_rank_1, r"^rank 1 of 2: ValueError: as planned$"),
        (_die_on_rank_1, r"^rank \d of 2 died: the last words$"),
    ],
)
def test_a_rank_that_fails_ends_all(function, message):
    """The rank that waits in MPI does not keep them."""
    with pytest.raises(RankError, match=message), Ranks(2) as ranks:
        ranks.call(function)
    assert ranks._process.poll() is not None


def test_without_mpiexec_there_is_one_line(monkeypatch):
    monkeypatch.setattr(rank_processes.sys, "executable", "/no/python")
    monkeypatch.setattr(rank_processes.shutil, "which", lambda _: None)
    with pytest.raises(RankError, match=r"^there is no mpiexec: pip install -e '\.\[mpi\]'$"):
        Ranks(1)


# Ratios


def test_arms_are_a_process_alone_independent_ones_and_ranks():
    found = arms_of([2], 8)
    assert found[:2] == [Arm(MIXPREC, 1, 8, False), Arm(PLAIN, 1, 8, False)]
    for batch in (8, 4):
        assert [arm for arm in found[2:] if arm.batch == batch] == [
            *[Arm(program, 2, batch, False) for program in (MIXPREC, PLAIN)],
            *[Arm(program, 2, batch, True) for program in (MIXPREC, WRAPPED, PLAIN)],
        ]
    assert len(found) == len(set(found)) == 12


RATES = {  # images/s of a turn
    Arm(MIXPREC, 1, 8, False): 100.0,
    Arm(PLAIN, 1, 8, False): 50.0,
    Arm(MIXPREC, 2, 8, False): 160.0,
    Arm(PLAIN, 2, 8, False): 90.0,
    Arm(MIXPREC, 2, 8, True): 150.0,
    Arm(WRAPPED, 2, 8, True): 120.0,
    Arm(PLAIN, 2, 8, True): 81.0,
    Arm(MIXPREC, 2, 4, False): 140.0,
    Arm(PLAIN, 2, 4, False): 80.0,
    Arm(MIXPREC, 2, 4, True): 126.0,
    Arm(WRAPPED, 2, 4, True): 70.0,
    Arm(PLAIN, 2, 4, True): 60.0,
}


def test_efficiencies_of_a_turn():
    rows = rows_of([RATES], [2], 8)
    found = {(row.scaling, row.name): (row.efficiency, row.of_ceiling) for row in rows}
    assert found == {
        (WEAK, "mixprec, independent processes: the ceiling"): (0.8, None),
        (WEAK, "plain Chainer, independent processes: the ceiling"): (0.9, None),
        (WEAK, "mixprec, communicator="): (0.75, 150 / 160),
        (WEAK, "mixprec in ChainerMN's optimizer"): (0.6, 0.75),
        (WEAK, "plain Chainer in ChainerMN's optimizer"): (0.81, 0.9),
        (STRONG, "mixprec, independent processes: the ceiling"): (0.7, None),
        (STRONG, "plain Chainer, independent processes: the ceiling"): (0.8, None),
        (STRONG, "mixprec, communicator="): (0.63, 0.9),
        (STRONG, "mixprec in ChainerMN's optimizer"): (0.35, 0.5),
        (STRONG, "plain Chainer in ChainerMN's optimizer"): (0.6, 0.75),
    }


def test_ratios_are_those_of_a_turn():
    """A machine that is half as fast in one turn changes no ratio."""
    slow = {arm: rate / 2 for arm, rate in RATES.items()}
    (first, *_), (quick, *_) = rows_of([RATES, slow, RATES], [2], 8), rows_of([RATES], [2], 8)
    assert first == quick
    uneven = {**RATES, Arm(MIXPREC, 2, 8, False): 120.0}
    (row, *_) = rows_of([RATES, uneven, RATES], [2], 8)
    assert (row.efficiency, row.lowest, row.highest) == (0.8, 0.6, 0.8)


@pytest.mark.parametrize(
    ("hidden", "own", "verdicts"),
    [(0.61, 150.0, ["met", "met", "MISSED", "met"]), (0.59, 162.0, ["met", "met", "met", "MISSED"])],
)
def test_the_table_says_what_is_met(hidden, own, verdicts):
    rows = rows_of([{**RATES, Arm(MIXPREC, 2, 8, True): own}], [2], 8)
    table = Measured("title", {MIXPREC: 100.0}, rows, {2: hidden}).table()
    assert [line.split()[-1] for line in table.splitlines()[-4:]] == verdicts


def test_four_ranks_are_shown_without_a_verdict():
    rates = {dataclasses.replace(arm, ranks=4 if arm.ranks == 2 else 1): rate for arm, rate in RATES.items()}
    rates |= {dataclasses.replace(arm, batch=2): rate for arm, rate in rates.items() if arm.ranks == 4}
    table = Measured("title", {MIXPREC: 100.0}, rows_of([rates], [4], 8), {4: 0.25}).table()
    assert "met" not in table
    assert "MISSED" not in table
    assert table.splitlines()[-1].split()[-1] == "0.25"


# What is hidden


@pytest.mark.parametrize(
    ("intervals", "end", "expected"),
    [
        ([], 5, 0),
        ([(1, 3)], 5, 2),
        ([(1, 3)], 2, 1),
        ([(1, 3)], 0, 0),
        ([(1, 3), (2, 6)], 10, 5),
        ([(2, 6), (1, 3)], 4, 3),
        ([(1, 9), (2, 3), (8, 10)], 20, 9),
        ([(1, 2), (4, 6)], 5, 2),
        ([(1, 4), (2, 8), (9, 10)], 3, 2),
    ],
)
def test_time_with_sums_under_way(intervals, end, expected):
    assert under_way(intervals, end) == expected


def test_outside_of_a_trace_mixprec_runs_as_it_is():
    before = mpi_transport._Sum, exchange.GradientExchange.finish
    traced = Trace()
    with traced.steps():
        assert mpi_transport._Sum is not before[0]
    assert (mpi_transport._Sum, exchange.GradientExchange.finish) == before
    assert (traced.hidden, traced.total) == (0, 0)


def _trace():
    rank_steps.prepare(MIXPREC, MODELS["resnet8"], "float16", True)
    rank_steps.warm_up(2)
    start = time.perf_counter()
    found = rank_steps.trace(2, 3)
    return *found, time.perf_counter() - start


@needs_mpi
def test_a_trace_of_ranks():
    with Ranks(2) as ranks:
        for hidden, total, seconds in ranks.call(_trace):
            assert 0 <= hidden <= total
            assert 0 < total < seconds


# The command


@needs_mpi
def test_the_command_on_a_tiny_case(tmp_path, capsys):
    path = tmp_path / "scaling.json"
    arguments = ["--no-model", "--arch", "resnet8", "--batch", "2", "--blocks", "1", "--seconds", "0.01"]
    benchmark.main(["scaling", *arguments, "--json", str(path)])
    printed = capsys.readouterr().out
    record = json.loads(path.read_text())
    assert record["settings"]["ranks"] == [2]
    assert set(record) == {"settings", "measured"}
    measured = record["measured"]
    assert {"date", "commit", "cpu", "title", "alone", "rows", "hidden"} <= measured.keys()
    assert len(measured["rows"]) == 10
    assert 0 <= measured["hidden"]["2"] <= 1
    for row in measured["rows"]:
        alone = measured["alone"][MIXPREC if row["name"].startswith(MIXPREC) else PLAIN]
        assert row["efficiency"] == pytest.approx(row["images_per_second"] / 2 / alone)
        assert f"  {row['name']:50}{row['images_per_second']:10.1f}" in printed
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


RANKS = "expected numbers of at least 2 that divide --batch"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--ranks", "1,2"), "benchmark: --ranks 1: expected numbers of at least 2 that divide --batch 32"),
        (("--ranks", "2,3"), "benchmark: --ranks 3: expected numbers of at least 2 that divide --batch 32"),
        (
            ("--ranks", "2", "--batch", "3"),
            "benchmark: --ranks 2: expected numbers of at least 2 that divide --batch 3",
        ),
        (("--ranks", "x"), "error: argument --ranks: found 'x', expected integers of at least 1 with commas"),
        (("--no-model", "--no-measure"), "error: argument --no-measure: not allowed with argument --no-model"),
        (("--dtype", "float64"), "error: argument --dtype: invalid choice: 'float64'"),
    ],
)
def test_bad_arguments(arguments, error, capsys):
    with pytest.raises(SystemExit) as ended:
        benchmark.main(["scaling", *arguments])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(error)


def test_a_failure_of_a_rank_is_one_line(monkeypatch, capsys):
    def fail(*_, **__):
        raise RankError("rank 1 of 2: ValueError: no")

    monkeypatch.setattr(measured_scaling, "measure", fail)
    with pytest.raises(SystemExit) as ended:
        benchmark.main(["scaling", "--no-model"])
    assert ended.value.code == 1
    assert capsys.readouterr().err.splitlines() == ["benchmark: rank 1 of 2: ValueError: no"]

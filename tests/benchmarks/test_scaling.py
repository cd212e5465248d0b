"""``scripts/benchmark.py scaling``: processes under mpiexec, ratios, and the whole command."""

import importlib.util
import json
import os

import pytest

from benchmarks.scaling import measured_scaling, rank_processes
from benchmarks.scaling.measured_scaling import STRONG, WEAK, Arm, arms_of, rows_of
from benchmarks.scaling.rank_processes import RankError, Ranks
from benchmarks.scaling.rank_steps import MIXPREC, PLAIN, WRAPPED
from scripts import benchmark

pytestmark = pytest.mark.slow

needs_mpi = pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not installed: extra mpi")


# Processes


def _fail_on_rank_1():
    """The others wait for it in MPI."""
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == 1:
        raise ValueError("as planned\nand more")
    MPI.COMM_WORLD.barrier()


def _die_on_rank_1():
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == 1:
        os.write(2, b"the last words\n")
        os._exit(3)
    MPI.COMM_WORLD.barrier()


FAILING = [
    (_fail_on_rank_1, r"^rank 1 of 2: ValueError: as planned$"),
    (_die_on_rank_1, r"^rank \d of 2 died: the last words$"),
]


@needs_mpi
@pytest.mark.parametrize(("function", "message"), FAILING)
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


RATES = (
    {Arm(MIXPREC, 1, 8, False): 100.0, Arm(PLAIN, 1, 8, False): 50.0, Arm(MIXPREC, 2, 8, False): 160.0}
    | {Arm(PLAIN, 2, 8, False): 90.0, Arm(MIXPREC, 2, 8, True): 150.0, Arm(WRAPPED, 2, 8, True): 120.0}
    | {Arm(PLAIN, 2, 8, True): 81.0, Arm(MIXPREC, 2, 4, False): 140.0, Arm(PLAIN, 2, 4, False): 80.0}
    | {Arm(MIXPREC, 2, 4, True): 126.0, Arm(WRAPPED, 2, 4, True): 70.0, Arm(PLAIN, 2, 4, True): 60.0}
)


def test_efficiencies_of_a_turn():
    assert arms_of([2], 8) == list(RATES)
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


# The command


@pytest.mark.long
@needs_mpi
def test_the_command_on_a_tiny_case(tmp_path, capsys):
    path = tmp_path / "scaling.json"
    arguments = ["--arch", "resnet8", "--batch", "2", "--blocks", "1", "--seconds", "0.01"]
    benchmark.main(["scaling", *arguments, "--json", str(path)])
    printed = capsys.readouterr().out
    record = json.loads(path.read_text())
    assert record["settings"]["ranks"] == [2]
    assert {"date", "commit", "cpu", "title", "alone", "rows"} <= record.keys()
    assert len(record["rows"]) == 10
    for row in record["rows"]:
        alone = record["alone"][MIXPREC if row["name"].startswith(MIXPREC) else PLAIN]
        assert row["efficiency"] == pytest.approx(row["images_per_second"] / 2 / alone)
        assert f"  {row['name']:50}{row['images_per_second']:10.1f}" in printed


def test_ranks_that_do_not_divide_the_batch(capsys):
    with pytest.raises(SystemExit) as ended:
        benchmark.main(["scaling", "--ranks", "2,3"])
    assert ended.value.code == 2
    message = "benchmark: --ranks 3: expected numbers of at least 2 that divide --batch 32"
    assert capsys.readouterr().err.splitlines() == [message]


def test_a_failure_of_a_rank_is_one_line(monkeypatch, capsys):
    def fail(*_, **__):
        raise RankError("rank 1 of 2: ValueError: no")

    monkeypatch.setattr(measured_scaling, "measure", fail)
    with pytest.raises(SystemExit) as ended:
        benchmark.main(["scaling"])
    assert ended.value.code == 1
    assert capsys.readouterr().err.splitlines() == ["benchmark: rank 1 of 2: ValueError: no"]

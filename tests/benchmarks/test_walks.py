"""``scripts/benchmark.py walks``: which calls count, and how many files a step may enter."""

import json
import pathlib
import sys

import pytest

import mixprec
from benchmarks import walks
from mixprec import dtypes
from scripts import benchmark

pytestmark = pytest.mark.slow

ON_BOTH = [walks.FORWARD, walks.UPDATE, walks.STEP]
ROWS = [
    *((walks.NUMPY, name) for name in [*ON_BOTH, walks.CAPTURE]),
    *((walks.STAND_IN, name) for name in [*ON_BOTH, walks.WARM_UP, walks.CAPTURED, walks.LAUNCHED]),
]
# Files and changes on NumPy, by the native library; a change of the code may lower them. An update enters patience.py:
# what all three loss scales count stands in one file.
MOST = {
    walks.FORWARD: (23, 86),
    walks.UPDATE: (12, 30),
    walks.STEP: (49, 304),
    walks.CAPTURE: (53, 317),
}


@pytest.fixture(scope="module")
def found():
    return walks.measure()


def test_only_calls_into_mixprec_count_and_a_return_is_no_change():
    def work():
        dtypes.is_half(None)
        len("of the interpreter")
        json.dumps({})
        dtypes.is_half(None)

    assert walks.count(work) == (("dtypes.py",), 1)


def test_a_change_is_a_call_in_another_file_than_the_call_before():
    def work():
        for _ in range(3):
            dtypes.is_half(None)
            mixprec.__dir__()

    assert walks.count(work) == (("dtypes.py", "__init__.py"), 6)


def test_nothing_is_profiled_afterwards_even_if_the_work_fails():
    with pytest.raises(ZeroDivisionError):
        walks.count(lambda: 1 / 0)
    assert sys.getprofile() is None


def test_each_walk_is_there_and_its_files_are_those_of_mixprec(found):
    assert [(walk.device, walk.name) for walk in found] == ROWS
    root = pathlib.Path(mixprec.__file__).parent
    for walk in found:
        assert 0 < len(walk.files) == len(set(walk.files)) <= walk.changes
        assert all((root / file).is_file() for file in walk.files)


def test_walks_on_numpy_do_not_get_longer(found):
    for walk in found[: len(MOST)]:
        files, changes = MOST[walk.name]
        assert len(walk.files) <= files, walk
        assert walk.changes <= changes, walk


def test_a_launched_step_enters_no_file_of_the_forward_pass(found):
    launched = found[-1]
    assert not any(file.startswith(("rewrite/", "links/", "bridge/")) for file in launched.files)
    assert launched.changes < found[-2].changes


def test_the_same_numbers_each_time(found):
    assert walks.measure() == found


def test_table_and_the_same_numbers_as_json(found, tmp_path, capsys):
    file = tmp_path / "walks.json"
    benchmark.main(["walks", "--verbose", "--json", str(file)])
    printed = capsys.readouterr().out
    record = json.loads(file.read_text())
    assert {"date", "python", "mixprec", "commit"} <= record.keys()
    assert [(walk["device"], walk["name"]) for walk in record["walks"]] == ROWS
    assert record["walks"] == json.loads(json.dumps(walks.as_json(found)))
    for walk in record["walks"]:
        assert f"  {walk['name']:50}{len(walk['files']):>7}{walk['changes']:>9}" in printed
    assert f"      {record['walks'][0]['files'][0]}\n" in printed
    assert "      " + record["walks"][0]["files"][0] not in walks.table(found)

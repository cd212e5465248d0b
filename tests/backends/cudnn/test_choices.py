"""Measured choices on disk: kept, shared by processes, refused when damaged or of other versions."""

import concurrent.futures
import json
import logging
import os
from pathlib import Path

import pytest

from mixprec.backends.cudnn.choices import Choices

ENVIRONMENT = {"device": "NVIDIA H200 / 141 GB", "sm": 90, "driver": 13000, "cudnn": "9.28.0", "frontend": "1.28.0"}


def test_what_was_chosen_is_there_for_the_next_process(tmp_path):
    first = Choices(tmp_path / "new", ENVIRONMENT)
    assert first.get("conv") is None
    first.put("conv", "eng1_k2=3", 0.25)
    assert first.get("conv") == "eng1_k2=3"
    assert Choices(tmp_path / "new", ENVIRONMENT).get("conv") == "eng1_k2=3"


def test_the_file_says_what_it_is_for(tmp_path):
    choices = Choices(tmp_path, ENVIRONMENT)
    choices.put("conv", "eng1", 0.25, 40)
    choices.ban("conv", "eng2", "it failed: why")
    name = "device_NVIDIA_H200_141_GB-sm_90-driver_13000-cudnn_9.28.0-frontend_1.28.0.json"
    assert choices.path == str(tmp_path / name)
    assert json.loads((tmp_path / name).read_text()) == {
        "format": 2,
        "environment": ENVIRONMENT,
        "choices": {"conv": {"name": "eng1", "milliseconds": 0.25, "seconds": 40}},
        "never": {"conv": {"eng2": "it failed: why"}},
    }


@pytest.mark.parametrize("change", [{"cudnn": "9.29.0"}, {"sm": 100}])
def test_another_version_has_a_file_of_its_own(tmp_path, change):
    Choices(tmp_path, ENVIRONMENT).put("conv", "eng1", 0.25)
    other = Choices(tmp_path, {**ENVIRONMENT, **change})
    assert other.get("conv") is None
    other.put("conv", "eng2", 0.25)
    assert Choices(tmp_path, ENVIRONMENT).get("conv") == "eng1"


def damaged(content):
    return pytest.param(content if isinstance(content, bytes) else json.dumps(content).encode())


DAMAGED = [
    damaged(b"{"),
    damaged([]),
    damaged({"format": 1, "environment": ENVIRONMENT, "choices": {"conv": {"name": "eng1", "milliseconds": 1.0}}}),
    damaged({"format": 2, "environment": ENVIRONMENT}),
    damaged({"format": 2, "environment": ENVIRONMENT, "choices": {}, "never": {"conv": ["eng1"]}}),
    damaged({"format": 2, "environment": ENVIRONMENT, "choices": {"conv": "eng1"}, "never": {}}),
    damaged({"format": 2, "environment": ENVIRONMENT, "choices": {"conv": {"name": 1, "seconds": 0}}, "never": {}}),
    damaged({"format": 2, "environment": {**ENVIRONMENT, "sm": 80}, "choices": {}, "never": {}}),
]


@pytest.mark.parametrize("content", DAMAGED)
def test_a_file_that_cannot_be_trusted_is_named_once_and_replaced(tmp_path, caplog, content):
    path = Path(Choices(tmp_path, ENVIRONMENT).path)
    path.write_bytes(content)
    choices = Choices(tmp_path, ENVIRONMENT)
    assert choices.get("conv") is None
    choices.put("conv", "eng2", 0.5)
    choices.put("bn", "eng3", 0.5)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert str(path) in record.message
    assert "made again" in record.message
    fresh = Choices(tmp_path, ENVIRONMENT)
    assert (fresh.get("conv"), fresh.get("bn")) == ("eng2", "eng3")
    assert len(caplog.records) == 1


def test_a_choice_of_a_shorter_search_does_not_count(tmp_path):
    choices = Choices(tmp_path, ENVIRONMENT)
    choices.put("conv", "eng1", 0.25, 3)
    assert [choices.get("conv", seconds) for seconds in (0, 3, 40)] == ["eng1", "eng1", None]


def test_what_is_never_to_be_tried_is_known_to_the_next_process_and_is_no_choice(tmp_path):
    choices, other = Choices(tmp_path, ENVIRONMENT), Choices(tmp_path, ENVIRONMENT)
    choices.put("conv", "eng1", 0.25)
    choices.ban("conv", "eng1", "it failed")
    other.ban("conv", "eng2", "y differs")
    other.ban("bn", "eng1", "dx differs")
    for found in (other, Choices(tmp_path, ENVIRONMENT)):
        assert found.get("conv") is None
        assert found.never("conv") == {"eng1": "it failed", "eng2": "y differs"}
        assert found.never("bn") == {"eng1": "dx differs"}
        assert found.never("fc") == {}
    assert choices.get("conv") is None


def test_without_a_folder_choices_last_as_long_as_the_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    choices = Choices(None, ENVIRONMENT)
    choices.put("conv", "eng1", 0.25)
    assert choices.get("conv") == "eng1"
    assert os.listdir(tmp_path) == []


def test_where_nothing_can_be_written_choices_last_as_long_as_the_process(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    choices = Choices(tmp_path / "file", ENVIRONMENT)
    choices.put("conv", "eng1", 0.25)
    choices.put("bn", "eng2", 0.25)
    assert (choices.get("conv"), choices.get("bn")) == ("eng1", "eng2")
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    assert len([record for record in caplog.records if "cannot be kept" in record.message]) == 1


def test_an_interrupted_write_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    choices = Choices(tmp_path, ENVIRONMENT)
    choices.put("conv", "eng1", 0.25)

    def interrupted(source, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        choices.put("bn", "eng2", 0.25)
    monkeypatch.undo()
    assert Choices(tmp_path, ENVIRONMENT).get("conv") == "eng1"
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".lock"]


def test_two_that_were_read_at_the_same_time_do_not_overwrite_each_other(tmp_path):
    first, second = Choices(tmp_path, ENVIRONMENT), Choices(tmp_path, ENVIRONMENT)
    first.put("conv", "eng1", 0.25)
    second.put("bn", "eng2", 0.25)
    assert second.get("conv") == "eng1"
    assert Choices(tmp_path, ENVIRONMENT).get("conv") == "eng1"


def test_writers_at_the_same_time_lose_nothing(tmp_path):
    """Each locks the file by a descriptor of its own, as another process does."""

    def write(writer):
        choices = Choices(tmp_path, ENVIRONMENT)
        for number in range(10):
            choices.put(f"{writer} {number}", f"eng{number}", 1.0)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    choices = Choices(tmp_path, ENVIRONMENT)
    assert [choices.get(f"{w} {n}") for w in range(4) for n in range(10)] == [f"eng{n}" for n in range(10)] * 4

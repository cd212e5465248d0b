"""Links in the folder of a run, which no task follows."""

import base64
import os
import shutil

import pytest

from tests.app.monitor.work.asking import answer, error

SECRET = "secretkey_hunter2: 1\npassword 123\n"
NOT_FOLLOWED = "a link, which is not followed"


@pytest.fixture
def root(work, tmp_path):
    """A folder of results with a copy of a run in it, and secrets beside it."""
    shutil.copytree(work / "run", tmp_path / "results" / "deep" / "run")
    (tmp_path / "secret").write_text(SECRET)
    return tmp_path / "results"


def _request(task, root, work):
    run = str(root / "deep" / "run")
    return {
        "evaluate": {"run": run, "weights": "model.npz"},
        "inside": {"run": run, "image": base64.b64encode((work / "images/val/a/00.jpg").read_bytes()).decode()},
        "images": {"run": run, "indices": [0]},
        "data": {"config": f"{run}/config.yaml"},
        "schedule": {"config": f"{run}/config.yaml"},
        "augment": {"config": f"{run}/config.yaml", "index": 0},
    }[task] | {"root": str(root)}


TASKS = ["evaluate", "inside", "images", "data", "schedule", "augment"]
TWO = ["images", "schedule"]  # of a run, and of a config


@pytest.mark.parametrize("task", TASKS)
def test_a_config_that_is_a_link_is_refused_and_nothing_of_it_shown(root, tmp_path, work, task):
    config = root / "deep" / "run" / "config.yaml"
    config.unlink()
    config.symlink_to(tmp_path / "secret")
    message = error(task, **_request(task, root, work))
    assert f"{config}: cannot be read: {NOT_FOLLOWED}" in message
    assert "hunter2" not in message


@pytest.mark.parametrize("task", TWO)
@pytest.mark.parametrize("name", ["deep", "deep/run"])
def test_a_folder_that_is_a_link_is_refused(root, tmp_path, work, task, name):
    (root / name).rename(tmp_path / "elsewhere")
    (root / name).symlink_to(tmp_path / "elsewhere")
    assert "Not a directory" in error(task, **_request(task, root, work))


@pytest.mark.parametrize("task", TWO)
@pytest.mark.parametrize("above", [False, True])
def test_a_config_of_a_run_has_no_base(root, tmp_path, work, task, above):
    config = root / "deep" / "run" / "config.yaml"
    if above:
        (root / "base.yaml").write_text(SECRET)
    config.write_text(f"base: {'../../base.yaml' if above else tmp_path / 'secret'}\n")
    message = error(task, **_request(task, root, work))
    assert message.endswith("the config of a run has all keys, and no base")
    assert "hunter2" not in message


@pytest.mark.parametrize(("task", "name"), [("evaluate", "model.npz"), ("inside", "snapshot_iter_7.npz")])
def test_weights_that_are_a_link_are_refused(root, tmp_path, work, task, name):
    run = root / "deep" / "run"
    (run / "model.npz").rename(tmp_path / "weights.npz")
    (run / name).symlink_to(tmp_path / "weights.npz")
    message = error(task, **{**_request(task, root, work), "weights": name})
    assert message == f"{run / name}: {NOT_FOLLOWED}"


@pytest.mark.parametrize("task", ["evaluate", "inside"])
def test_names_of_classes_that_are_a_link_are_refused(root, tmp_path, work, task):
    names = root / "deep" / "run" / "classes.txt"
    names.unlink()
    names.symlink_to(tmp_path / "secret")
    message = error(task, **_request(task, root, work))
    assert NOT_FOLLOWED in message
    assert "hunter2" not in message


def test_an_evaluation_is_written_in_place_of_a_link(root, tmp_path, work):
    written = root / "deep" / "run" / "evaluation-model.json"
    written.symlink_to(tmp_path / "secret")
    answer("evaluate", **_request("evaluate", root, work))
    assert (tmp_path / "secret").read_text() == SECRET
    assert not written.is_symlink()
    assert sorted(os.listdir(written.parent)) == sorted([*os.listdir(work / "run"), "evaluation-model.json"])


def test_a_run_elsewhere_is_refused(root, work):
    message = error("images", run=str(work / "run"), root=str(root), indices=[0])
    assert message == f"'run' is {work / 'run'}; wanted: a folder in 'root', {root}"


def test_the_root_and_the_images_of_a_config_may_be_reached_by_links(root, tmp_path, work):
    (tmp_path / "link").symlink_to(root)
    (tmp_path / "images").symlink_to(work / "images")
    overrides = [f"data.{part}={tmp_path}/images/{part}" for part in ("train", "val")]
    found = answer("images", run=f"{tmp_path}/link/deep/run", root=f"{tmp_path}/link", indices=[0], overrides=overrides)
    assert len(found["images"]) == 1
    assert len(answer("images", run=f"{tmp_path}/link/deep/run", indices=[0])["images"]) == 1


@pytest.mark.parametrize(("task", "text"), [("data", SECRET), ("schedule", "hunter2 1\n"), ("images", "hunter2 -5")])
def test_a_file_that_a_config_names_as_a_list_is_not_quoted(root, tmp_path, work, task, text):
    (tmp_path / "secret").write_text(text)
    request = {
        **_request(task, root, work),
        "overrides": [f"data.{part}={tmp_path}/secret" for part in ("train", "val")],
    }
    message = str(answer(task, **request)) if task == "data" else error(task, **request)
    assert "not a valid list of images; training reports the fault" in message
    assert "hunter2" not in message

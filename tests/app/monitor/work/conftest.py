"""Runs that the tests here look at."""

import json

import pytest

from mixprec.app.commands import train
from mixprec.data import digit_images as made
from tests.app.finished.conftest import work  # noqa: F401
from tests.called import call

SHORT = (
    *("precision.compute=float32", "training.epochs=1", "schedule.warmup_epochs=0", "training.batch_size=64"),
    *("training.device=cpu", "data.loader=pillow", "log.gradient_histogram=null"),
)


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    """``(folder, entry)``: a run of one epoch in float32, and the last entry of its log."""
    root = tmp_path_factory.mktemp("digits")
    for number, (name, pixels) in enumerate(made._named(*made.load_digits())):
        if name.startswith("train") and number % 6:  # a few do, and all of those to validate on
            continue
        path = root / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(made._jpeg(pixels, 40))
    settings = [f"data.{part}={root}/data/{part}" for part in ("train", "val")]
    options = [word for each in (*SHORT, *settings) for word in ("--set", each)]
    done = call(train.main, "--config", "digits.yaml", "--out", root / "run", *options)
    assert done.returncode == 0, done.stderr
    return root / "run", json.loads((root / "run" / "log.jsonl").read_text().splitlines()[-1])

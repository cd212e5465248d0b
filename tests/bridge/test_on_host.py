"""The tests of the bridge that are written for a GPU, on the host: in a process of their own, on ``fake_cupy``."""

import os
import re
import subprocess
import sys

from tests import ROOT
from tests.stand_ins import compiled

TIMEOUT = 900  # seconds; it takes one minute, two on a busy machine
FILE = "tests/bridge/test_gpu.py"
EXPECTED = {"passed": 120}  # counted here once more: what is skipped or was not collected is missed


def test_the_tests_of_the_gpu_pass_on_the_host():
    compiled.need_compiler()
    mine = ("MIXPREC_CUDNN", "CUDA_VISIBLE_DEVICES", "PYTEST_ADDOPTS")
    environment = {
        **{name: value for name, value in os.environ.items() if name not in mine and not name.startswith("CHAINER_")},
        "PYTHONPATH": str(ROOT),
    }
    options = ["-q", "-p", "no:cacheprovider", "-p", "tests.stand_ins.fake_cupy", "-m", "gpu", FILE]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-5000:]
    last = done.stdout.strip().splitlines()[-1]
    counts = {
        word: int(number) for number, word in re.findall(r"(\d+) (passed|skipped|failed|xfailed|xpassed|error)", last)
    }
    assert counts == EXPECTED, last

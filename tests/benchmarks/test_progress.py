"""benchmarks.bars.progress: what is counted while a row is prepared."""

import numpy as np
import pytest

from benchmarks.bars.progress import reporting
from mixprec.backends import launch
from mixprec.backends.cudnn import context, settings
from mixprec.backends.geometry import Convolution
from tests.stand_ins.cuda_on_host import HostCuda, send

pytestmark = pytest.mark.slow


def test_plans_and_measurements_of_cudnn_are_counted(capsys):
    before = launch.binary_of, context.Plan, context.fastest
    said, rng = [], np.random.default_rng(0)
    x, w = send(tuple(rng.normal(size=shape).astype(np.float16) for shape in ((2, 6, 5, 16), (24, 3, 3, 16))))
    settings.configure(autotune="measure", cache=None)
    with reporting("a row", said.append):
        cuda = HostCuda()
        for _ in range(2):
            y = cuda.conv_fprop(x, w, Convolution((1, 1), (1, 1)))
            cuda.conv_wgrad(x, y, Convolution((1, 1), (1, 1)), w.shape)
    assert said[0] == "imports, 0 kernels compiled, 0 plans of cuDNN built, 0 engines measured"
    assert said[-1].startswith("imports, 0 kernels compiled, ")
    built, measured = (int(said[-1].split(", ")[place].split()[0]) for place in (2, 3))
    assert built == len(cuda.cudnn.plans()) >= 2
    assert measured >= 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith(f"a row: {said[-1]}; ")
    assert before == (launch.binary_of, context.Plan, context.fastest)


def test_kernels_are_counted(monkeypatch):
    said = []
    monkeypatch.setattr(launch, "binary_of", lambda source: b"")
    with reporting("a row", said.append):
        launch.binary_of("")
    assert said[-1].startswith("imports, 1 kernels compiled, ")

"""The training command with two ranks, each of which has a stand-in for a GPU, beside two ranks on CPUs."""

import numpy as np
import pytest

from tests.app.run import rank_runs
from tests.stand_ins import compiled

SETTINGS = ("model.arch=small_norm", "training.ema_decay=0.9", "training.epochs=1")


@pytest.mark.slow
def test_ranks_with_gpus_are_ranks_on_cpus(tmp_path):
    """Weights, averages, statistics of all ranks, log: what goes to MPI and into files is brought to the host first."""
    compiled.need_compiler()
    rank_runs.make_work(tmp_path)
    device = {"program": ("rank_on_device", "own")}
    for out, name, program in (("gpus", "gpu", device), ("cpus", "cpu", {})):
        done = rank_runs.run(tmp_path, 2, out, *SETTINGS, f"training.device={name}", **program)
        assert (done.returncode, done.stderr) == (0, "")
        assert f"device: {'@cupy:0' if program else '@numpy'} " in done.stdout
    found, expected = (dict(np.load(tmp_path / out / "snapshot_iter_6.npz")) for out in ("gpus", "cpus"))
    assert found.keys() == expected.keys()
    arrays = [name for name in found if found[name].ndim and found[name].dtype.kind == "f"]
    assert "extensions/ranks/1/updater/model:main/predictor/norm/avg_var" in arrays
    for name in arrays:
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-5, err_msg=name)

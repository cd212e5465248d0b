"""``bars --task``: PyTorch's networks compute what Chainer's do, and every row is measured and counted in its unit."""

import chainer
import numpy as np
import pytest

from benchmarks.bars import chart, page, pytorch_rows, record, row_schedule, row_worker, sequences
from benchmarks.bars.row_worker import Task
from benchmarks.bars.sequences import SEQUENCES, UNITS
from scripts import benchmark
from tests.stand_ins.stub_worker import StubWorker

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def torch(monkeypatch):
    """With sequences of a few words."""
    module = pytest.importorskip("torch", reason="torch is not installed")
    for name, value in (("STEPS", 3), ("WORDS", (2, 4)), ("FRAMES", (3, 6))):
        monkeypatch.setattr(sequences, name, value)
    threads = module.get_num_threads()
    yield module
    module.set_num_threads(threads)


def _by_gate(array):
    """Returns a parameter of ``L.LSTM``, in which the four gates of a unit are neighbours, in PyTorch's order."""
    return np.concatenate([array.reshape(UNITS, 4, *array.shape[1:])[:, gate] for gate in (1, 2, 0, 3)])


def _arrays(model, name):
    """Returns the parameters of a layer in PyTorch's order; in lm the model itself has the recurrent layers."""
    found, link = [], getattr(model, name, model)
    if link is model:
        for each in (model.first, model.second):
            arrays = [_by_gate(param.array) for param in (each.upward.W, each.lateral.W, each.upward.b)]
            found += [*arrays, np.zeros_like(arrays[-1])]
    for each in link.children() if isinstance(link, chainer.ChainList) else ():
        for kind in "wb":
            gates = [getattr(each, f"{kind}{gate}").array for gate in range(8)]
            found += [np.concatenate(gates[:4]), np.concatenate(gates[4:])]
    return found or [param.array for param in link.params()]


@pytest.mark.parametrize("arch", SEQUENCES)
def test_with_the_same_weights_the_losses_are_the_same(arch, torch):
    model, (batch, _) = SEQUENCES[arch](), sequences.batch_of(arch, 3)
    step = pytorch_rows.bars("@numpy", arch)[0].make(Task(arch, None, "@numpy", 3, None))
    for name, module in step.network.eval().named_children():
        for tensor, array in zip(module.parameters(), _arrays(model, name), strict=False):  # dropout has none
            tensor.data = torch.from_numpy(array.copy())
    step()
    with chainer.using_config("train", False):
        assert float(step.loss) == pytest.approx(float(model(*batch).array), rel=1e-5)


@pytest.mark.parametrize(("arch", "unit"), [("lm", "words"), ("seq2seq", "words"), ("blstm", "frames")])
def test_every_row_is_measured(arch, unit, tmp_path, monkeypatch):
    monkeypatch.setattr(row_schedule, "Worker", lambda: StubWorker(row_worker))
    monkeypatch.setattr(row_schedule, "_LEAST", 0.0)
    monkeypatch.setattr(row_worker, "_BEFORE", 0.0)
    few = ["--batch", "2", "--blocks", "1", "--block-steps", "1", "--json", str(tmp_path / "bars.json")]
    benchmark.main(["bars", "--task", arch, "--peer", "pytorch", *few])
    found = record.read(tmp_path / "bars.json")
    rows = {row["name"]: row for row in found["rows"]}
    mixed = [f"mixprec {precision}" for precision in ("FP32", "FP16", "BF16")]
    assert [*rows] == ["plain Chainer FP32", *mixed, "PyTorch FP32", "PyTorch AMP bfloat16"]
    items = sequences.batch_of(arch, 2)[1]
    assert all(row["median"] * row["milliseconds"] == pytest.approx(1e3 * items) for row in rows.values())
    assert 0 < rows["mixprec FP16"]["kept"] < rows["plain Chainer FP32"]["kept"]
    assert chart.figure(found).axes[0].get_xlabel() == f"{unit}/s"
    text = page.page({"bars.json": found})
    assert f": {arch}, batch 2\n" in text
    assert f"| row | {unit}/s | min-max | ms a step | ratio | peak MB | kept MB |" in text

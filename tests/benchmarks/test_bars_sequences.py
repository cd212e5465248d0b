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


def _layers(link):
    """Yields the parameters of each layer and direction in PyTorch's order."""
    if isinstance(link, sequences.LanguageModel):
        for each in (link.first, link.second):
            bias = _by_gate(each.upward.b.array)
            yield _by_gate(each.upward.W.array), _by_gate(each.lateral.W.array), bias, np.zeros_like(bias)
        return
    for each in link.children():
        whole = [[getattr(each, f"{kind}{gate}").array for gate in range(8)] for kind in "wb"]
        yield [np.concatenate(part) for arrays in whole for part in (arrays[:4], arrays[4:])]


@pytest.mark.parametrize("arch", SEQUENCES)
def test_with_the_same_weights_the_losses_are_the_same(arch, torch):
    model, (batch, _) = SEQUENCES[arch](), sequences.batch_of(arch, 3)
    step = pytorch_rows.bars("@numpy", arch)[0].make(Task(arch, None, "@numpy", 3, None))
    for name, module in step.network.eval().named_children():
        link = getattr(model, name, model)  # in lm the model itself has the layers
        if isinstance(module, torch.nn.LSTM):
            pairs = zip(module.all_weights, _layers(link), strict=True)
        else:
            pairs = [(module.parameters(), [param.array for param in link.params()])]
        for own, arrays in pairs:
            for tensor, array in zip(own, arrays, strict=False):  # dropout has none
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

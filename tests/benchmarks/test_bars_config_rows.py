"""benchmarks.bars.config_rows and synthetic_run: rows are what the training script does with the configs."""

import pickle

import chainer
import numpy as np
import pytest

from benchmarks.bars import config_rows as rows
from benchmarks.bars.config_rows import ALL
from benchmarks.bars.row_worker import Task
from mixprec.app import config as configs
from mixprec.app.run import synthetic_run
from mixprec.training.updater import CapturedUpdater
from models import MODELS

pytestmark = pytest.mark.slow

TASK = Task("resnet8", MODELS["resnet8"], "@numpy", 4, 32)


def _bars(specifier):
    return {bar.name: bar for bar in rows.bars(specifier, arch="resnet50", batch=32, size=224)}


SPECIFIERS = [
    ("@cupy:0", [["fp16.yaml", "dali.yaml"], ["nhwc_fused_batched.yaml", "static_graph.yaml, no graph"]]),
    (
        "@numpy",
        [
            ["fp16.yaml", "dali.yaml"],
            [
                *["nhwc_fused_batched.yaml", "static_graph.yaml", "static_graph.yaml, no graph"],
                *["static_graph.yaml, no autotuning", "static_graph.yaml, no autotuning, no graph"],
                *["static_graph.yaml, second stream", "static_graph.yaml, no autotuning, second stream"],
                "static_graph.yaml, 30 s of search",
            ],
            ["static_graph.yaml, float32", "static_graph.yaml, TF32"],
        ],
    ),
]


@pytest.mark.parametrize(("specifier", "same"), SPECIFIERS)
def test_what_differs_only_in_what_a_step_does_not_do_here_is_the_same(specifier, same):
    groups = {}
    for bar in _bars(specifier).values():
        groups.setdefault(bar.key, []).append(bar.name)
    assert [names for names in groups.values() if len(names) > 1] == same


def test_the_talks_rows_switch_one_thing_on_after_the_other():
    before = None
    for name, changed in (
        ("fp32.yaml", None),
        ("fp16.yaml", {"precision", "loss_scale"}),
        ("dali.yaml", set()),
        ("nhwc_fused_batched.yaml", {"model", "update"}),
        ("static_graph.yaml", {"capture"}),
    ):
        config = synthetic_run.load(name, arch="resnet50", batch=32, size=224)
        assert config.data.format == "synthetic"
        if before is not None:
            sections = {part for part in vars(config) if getattr(config, part) != getattr(before, part)}
            assert sections - {"data"} == changed
        before = config


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("fp32.yaml", "float32"), (f"{ALL}, bfloat16", "bfloat16"), (f"{ALL}, no batched update, no graph", "float16")],
)
def test_a_step_trains(name, dtype, monkeypatch):
    updaters, of = [], synthetic_run.updater_of
    monkeypatch.setattr(synthetic_run, "updater_of", lambda *given: updaters.append(of(*given)) or updaters[-1])
    step = pickle.loads(pickle.dumps(_bars("@numpy")[name])).make(TASK)  # as on its way to a process
    (updater,) = updaters
    network = updater.get_optimizer("main").target.predictor
    assert (network.fc.b.size, network.conv1.W.dtype.name) == (1000, dtype)
    step()
    weights = np.array(network.fc.W.array, np.float32)
    for _ in range(2):
        step()
    assert updater.iteration == 3
    assert np.any(np.array(network.fc.W.array, np.float32) != weights)


def test_a_config_with_capture_hands_over_its_captured_step(monkeypatch):
    seen = []
    monkeypatch.setattr(rows, "step_of", lambda *arguments: seen.append(arguments))
    _bars("@cupy:0")["static_graph.yaml"].make(TASK)
    _bars("@cupy:0")["nhwc_fused_batched.yaml"].make(TASK)
    (device, update, captured, forget), (_, _, none, _) = seen
    assert device == chainer.get_device("@numpy")
    assert isinstance(update.__self__, CapturedUpdater)
    assert captured is update.__self__.step
    assert callable(forget)
    assert none is None


def test_what_cannot_be_is_an_error_of_the_config():
    with pytest.raises(configs.ConfigError, match=r"data\.size"):
        synthetic_run.load("fp32.yaml", arch="resnet18", batch=8, size=4)

"""Config files: what loads, what is refused and in which words, and the way back to YAML."""

import dataclasses
import itertools
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from mixprec.app.config import ConfigError, dump, flat, load, reference
from mixprec.data.loaders.operations import EXTRA
from models import MODELS
from tests import ROOT
from tests.app.config.refusal import refusal

REQUIRED = {
    "model": {"arch": "resnet50", "classes": 10},
    "data": {"train": "t", "val": "v"},
    "optimizer": {"lr": 0.5},
    "training": {"batch_size": 32, "epochs": 90},
}


def merged(**sections):
    """The smallest config as YAML text, with more keys."""
    content = {section: dict(keys) for section, keys in REQUIRED.items()}
    for section, keys in sections.items():
        content[section] = {**content.get(section, {}), **keys}
    return yaml.safe_dump(content, sort_keys=False)


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes files into an empty working directory, so that messages hold relative paths."""
    monkeypatch.chdir(tmp_path)

    def write(name, content):
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return name

    return write


# What loads


@pytest.mark.parametrize(("layout", "fuses"), [("nhwc", True), ("nchw", False)])
def test_batch_normalizations_are_fused_where_the_layout_allows_it(write, layout, fuses):
    config = load(write("c.yaml", merged()), [f"model.memory_format={layout}"])
    assert config.model.fuse is None
    assert config.model.fuses == fuses


def test_defaults_are_those_of_the_design(write):
    config = load(write("c.yaml", merged()))
    assert dataclasses.asdict(config) == {
        "model": (
            {"arch": "resnet50", "classes": 10, "weights": None, "memory_format": "nhwc", "fuse": None}
            | {"conv_statistics": None, "zero_init_residual": False, "stochastic_depth": 0.0}
        ),
        "precision": {"compute": "float16", "allreduce": None, "keep_float32": ()},
        "loss_scale": (
            {"mode": "dynamic", "init_scale": 65536.0, "growth_factor": 2.0, "backoff_factor": 0.5}
            | {"growth_interval": 2000, "min_scale": 6.103515625e-05, "max_scale": 16777216.0, "hysteresis": 1}
            | {"patience": 50, "search": False}
        ),
        "data": (
            {"format": "auto", "train": "t", "val": "v", "root": None, "synthetic_images": None, "on_error": "stop"}
            | {"loader": "auto", "size": 224, "val_size": None, "resize": 256, "crop_area": (0.08, 1.0), "flip": True}
            | {"augment": "none", "augment_operations": 2, "augment_magnitude": 9, "augment_deviation": 0.0}
            | {"augment_probability": 1.0, "extra_operations": (), "erase": 0.0, "repeats": 1}
            | {"mean": (123.675, 116.28, 103.53), "std": (58.395, 57.12, 57.375), "pad_channels": False}
            | {"last_batch": "partial", "shuffle_window": 16384, "threads": 4, "prefetch": 2, "decode": "gpu"}
        ),
        "progressive": {"until": (), "sizes": (), "batch_sizes": ()},
        "optimizer": (
            {"name": "CorrectedMomentumSGD", "lr": 0.5, "base_batch_size": None, "momentum": None}
            | {"trust_coefficient": None, "nesterov": False, "weight_decay": 0.0, "clip_norm": None}
            | {"decay_norm_and_bias": False, "rates": (), "freeze": (), "preconditioner": "none"}
        ),
        "kfac": (
            {"damping": 0.01, "end_damping": None, "norm_damping": 64.0, "ema_decay": 0.95, "kl_clip": None}
            | {"factor_every": 1, "inverse_every": 1, "largest": 8192}
        ),
        "update": {"fused": True},
        "cudnn": (
            {"autotune": "measure", "search_seconds": None, "compile_seconds": 0.0, "workspace_mib": 512}
            | {"deterministic": False, "allow_tf32": False}
        ),
        "schedule": (
            {"kind": "cosine", "warmup_epochs": 0.0, "warmup_start_lr": None, "decay_from": "warmup", "by": "step"}
            | {"milestones": (), "gamma": 0.1, "power": 2.0, "end_lr": 0.0}
        ),
        "training": (
            {"batch_size": 32, "accumulation_steps": 1, "epochs": 90, "seed": 0, "device": "auto"}
            | {"label_smoothing": 0.0, "loss": "cross_entropy", "class_weights": None, "bce_threshold": None}
            | {"mixup": 0.0, "cutmix": 0.0, "cutmix_probability": 0.5, "mix_probability": 1.0, "ema_decay": None}
        ),
        "memory": {"recompute": "none", "budget": None, "to": None},
        "capture": (
            {"mode": "off", "max_graphs": 4, "dynamic_shapes": "capture"} | {"evaluation": True, "second_stream": False}
        ),
        "snapshot": {"every": "1 epoch", "keep": 3, "best": True},
        "log": {"every": "1 epoch", "gradient_histogram": None, "tensorboard": False, "extensions": ()},
        "export": {"max_drop_float16": 0.1, "max_drop_int8": 1.0},
    }


FOREIGN_NAMES = [
    ("training.device=tpu", "gpu"),
    ("training.device=tpu:1", "gpu:1"),
    ("training.device=gpu0", "gpu:0"),
    ("training.device=0", "gpu:0"),
    ("model.memory_format=channel_first", "channels_first"),
    ("model.arch=birds/ShapeNet", "birds:ShapeNet"),
    ("model.arch=birds.net.ShapeNet", "birds.net:ShapeNet"),
    ("precision.compute=float", "float32"),
    ("optimizer.name=SGD", "MomentumSGD"),
]


@pytest.mark.parametrize(("override", "meant"), FOREIGN_NAMES)
def test_a_name_of_another_program_is_answered_with_ours(write, override, meant):
    with pytest.raises(ConfigError, match=f"; did you mean '{meant}'\\?$"):
        load(write("c.yaml", merged(optimizer={"momentum": 0.9})), [override], {"model.arch": ["resnet50"]})


SPELLINGS = [
    ("precision.compute", "fp16", "float16"),
    ("precision.compute", "half", "float16"),
    ("precision.compute", "bf16", "bfloat16"),
    ("training.device", "@numpy", "cpu"),
    ("training.device", "@cupy", "gpu"),
    ("training.device", "@cupy:1", "gpu:1"),
    ("training.device", "cuda", "gpu"),
    ("training.device", "CUDA:01", "gpu:1"),
    ("training.device", "GPU", "gpu"),
    ("precision.compute", "FP16", "float16"),
    ("precision.compute", "single", "float32"),
    ("precision.allreduce", "Half", "float16"),
    ("model.memory_format", "channels_last", "nhwc"),
    ("model.memory_format", "NCHW", "nchw"),
    ("model.memory_format", "channels_first", "nchw"),
]


@pytest.mark.parametrize(("name", "other", "value"), SPELLINGS)
def test_other_spellings_of_a_value(write, name, other, value):
    assert flat(load(write("c.yaml", merged()), [f"{name}={other}"]))[name] == value


def test_a_device_of_chainer_in_a_file_needs_quotes(write):
    assert refusal(write("c.yaml", "training: {device: @cupy}\n")).endswith("start any token; write the text in quotes")
    assert load(write("d.yaml", merged(training={"device": "@cupy"}))).training.device == "gpu"


@pytest.mark.parametrize("name", ["bird.yaml", "birds", "birds.yml"])
def test_a_missing_config_is_answered_with_one_of_its_folder(write, name):
    write("mine/birds.yaml", "")
    write("mine/digit.txt", "")
    assert refusal(f"mine/{name}") == f"mine/{name}: no such file; did you mean 'mine/birds.yaml'?"
    assert refusal("mine/digit.yaml").endswith("textures.yaml; did you mean 'digits.yaml'?")


@pytest.mark.parametrize(("other", "value"), [("channels_last", "nhwc"), ("contiguous", "nchw")])
def test_a_memory_format_has_the_name_that_pytorch_gives_it(write, other, value):
    config = load(write("c.yaml", merged()), [f"model.memory_format={other}"])
    assert config == load("c.yaml", [f"model.memory_format={value}"])
    assert yaml.safe_load(dump(config))["model"]["memory_format"] == value


def test_off_is_text_with_and_without_quotes(write):
    for text in ("off", "'off'"):
        assert load(write("c.yaml", merged()), [f"cudnn.autotune={text}"]).cudnn.autotune == "off"


@pytest.mark.parametrize(
    ("text", "mode"), [("true", "auto"), ("false", "off"), ("off", "off"), ("auto", "auto"), ("required", "required")]
)
def test_a_value_in_place_of_the_section_is_its_mode(write, text, mode):
    config = load(write("c.yaml", merged() + f"capture: {text}\n"))
    assert config == load(write("d.yaml", merged()), [f"capture={text}"])
    assert config == load(write("e.yaml", merged(capture={"mode": mode})))
    assert dataclasses.astuple(config.capture) == (mode, 4, "capture", True, False)


def test_a_value_in_place_of_the_section_leaves_its_other_keys(write):
    write("lib/a.yaml", merged(capture={"mode": "required", "max_graphs": 5}))
    write("c.yaml", "base: lib/a.yaml\ncapture: true\n")
    assert dataclasses.astuple(load("c.yaml").capture) == ("auto", 5, "capture", True, False)
    config = load("c.yaml", ["capture.max_graphs=1", "capture=false", "capture.evaluation=false"])
    assert dataclasses.astuple(config.capture) == ("off", 1, "capture", False, False)


def test_no_interval_is_no_trigger(write):
    assert load(write("c.yaml", merged())).log.gradient_histogram_trigger is None


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "+1e-3", "0.1e-2", ".001", "0.001", "10e-4"])
def test_every_notation_of_a_float_is_a_number(write, text):
    assert load(write("c.yaml", merged()), [f"optimizer.lr={text}"]).optimizer.lr == 0.001


def test_an_integer_becomes_a_float_where_a_float_is_wanted(write):
    config = load(write("c.yaml", merged()), ["optimizer.lr=1", "data.mean=[1, 2, 3e0]"])
    assert type(config.optimizer.lr) is float
    assert config.data.mean == (1.0, 2.0, 3.0)
    assert {type(value) for value in config.data.mean} == {float}


def test_a_date_an_octal_and_a_sexagesimal_are_what_they_look_like(write):
    """PyYAML alone makes them a date, 8 and 90."""
    config = load(write("c.yaml", merged()), ["data.train=2024-01-01", "training.seed=010", "data.val=1:30"])
    assert (config.data.train, config.training.seed, config.data.val) == ("2024-01-01", 10, "1:30")


TRIGGERS = [
    ("1 epoch", (1, "epoch")),
    ("5 epochs", (5, "epoch")),
    ("1 iteration", (1, "iteration")),
    ("500 iterations", (500, "iteration")),
]


@pytest.mark.parametrize(("text", "trigger"), TRIGGERS)
def test_intervals_become_triggers_of_chainer(write, text, trigger):
    config = load(write("c.yaml", merged(log={"every": text, "gradient_histogram": text}, snapshot={"every": text})))
    assert config.log.trigger == trigger
    assert config.log.gradient_histogram_trigger == trigger
    assert config.snapshot.trigger == trigger


def test_base_is_relative_to_its_file_and_later_files_win_key_by_key(write):
    write("lib/deep/a.yaml", merged(optimizer={"weight_decay": 0.25, "momentum": 0.5}, data={"mean": [1, 2, 3]}))
    write("lib/b.yaml", "base: deep/a.yaml\noptimizer: {weight_decay: 0.125, lr: 2}\n")
    config = load(write("c.yaml", "optimizer: {lr: 3}\nbase: lib/b.yaml\ndata: {mean: [4, 5, 6]}\n"))
    optimizer = config.optimizer
    assert (optimizer.lr, optimizer.momentum, optimizer.weight_decay) == (3.0, 0.5, 0.125)
    assert config.data.mean == (4.0, 5.0, 6.0)
    assert config.data.train == "t"


def test_overrides_win_over_files_and_the_last_one_over_the_others(write):
    write("c.yaml", merged(loss_scale={"max_scale": 65536}))
    config = load("c.yaml", ["optimizer.lr=2", "loss_scale.max_scale=null", "optimizer.lr=3", "data.train=a=b"])
    assert (config.optimizer.lr, config.loss_scale.max_scale, config.data.train) == (3.0, None, "a=b")


def test_the_script_names_the_architectures(write):
    path = write("c.yaml", merged())
    assert load(path, choices={"model.arch": ["resnet8", "resnet50"]}).model.arch == "resnet50"
    assert refusal(path, ["model.arch=resnet5"], choices={"model.arch": ["resnet8", "resnet50"]}) == (
        "--set: 'model.arch' is 'resnet5'; allowed: resnet8, resnet50, or an import path, package.module:function; "
        "did you mean 'resnet50'?"
    )
    imported = "model.arch=mypackage.nets:my_resnet"  # whether it is there the script finds out
    config = load(path, [imported], choices={"model.arch": ["resnet8", "resnet50"]})
    assert config.model.arch == yaml.safe_load(dump(config))["model"]["arch"] == "mypackage.nets:my_resnet"
    with pytest.raises(KeyError):
        load(path, choices={"model.architecture": ["resnet8"]})


# What is refused, and in which words


BAD_FILES = [
    (
        "optimizer:\n  # 0.1 is too much\n  learning_rate: 0.1\n",
        "c.yaml:3: unknown key 'optimizer.learning_rate'; allowed: name, lr, base_batch_size, momentum, "
        "trust_coefficient, nesterov, weight_decay, clip_norm, decay_norm_and_bias, rates, freeze, preconditioner; "
        "did you mean 'optimizer.lr'?",
    ),
    (
        "model:\n  arch: a\noptimiser: {lr: 1}\n",
        "c.yaml:3: unknown section 'optimiser'; allowed: model, precision, loss_scale, data, progressive, "
        "optimizer, kfac, update, cudnn, schedule, training, memory, capture, snapshot, log, export, base; "
        "did you mean 'optimizer'?",
    ),
    ("training:\n  epochs: 1\n  epochs: 2\n", "c.yaml:3: duplicate key 'epochs'; it is already on line 2"),
    ("log: {}\nmodel: {}\nlog: {}\n", "c.yaml:3: duplicate key 'log'; it is already on line 1"),
    (
        "mode: static\n",
        "c.yaml:1: unknown section 'mode'; allowed: model, precision, loss_scale, data, progressive, "
        "optimizer, kfac, update, cudnn, schedule, training, memory, capture, snapshot, log, export, base; "
        "did you mean 'loss_scale.mode'?",
    ),
    (
        "mode: {arch: a}\n",
        "c.yaml:1: unknown section 'mode'; allowed: model, precision, loss_scale, data, progressive, "
        "optimizer, kfac, update, cudnn, schedule, training, memory, capture, snapshot, log, export, base; "
        "did you mean 'model'?",
    ),
    ("log:\nmodel: {}\n", "c.yaml:1: 'log' is null; allowed: a section with the keys every, gradient_histogram"),
    ("log: [1]\n", "c.yaml:1: 'log' is [1]; allowed: a section with the keys every, gradient_histogram"),
    (
        "capture: 1\n",
        "c.yaml:1: 'capture' is 1; allowed: true, false, off, auto, required, or a section with the keys mode, "
        "max_graphs, dynamic_shapes, evaluation",
    ),
    ("\ncapture:\n", "c.yaml:2: 'capture' is null; allowed: true, false, off, auto, required, or a section "),
    ("capture: [auto]\n", "c.yaml:1: 'capture' is ['auto']; allowed: true, false, off, auto, required, or a "),
    ("capture: !mine true\n", "c.yaml:1: 'capture' cannot be read: tag '!mine' is not allowed"),
    ("log: true\n", "c.yaml:1: 'log' is true; allowed: a section with the keys every, gradient_histogram"),
    ("\n- 1\n", "c.yaml:2: found a list; allowed: sections with keys"),
    ("nonsense\n", "c.yaml:1: found 'nonsense'; allowed: sections with keys"),
    ("model: {}\n? [a]\n: 1\n", "c.yaml:2: found a list or mapping as a key; allowed: a name"),
    ("model: {}\n\tlog: {}\n", "c.yaml:2: not valid YAML: found character '\\t' that cannot start any token"),
    (
        "a: 1\n---\nb: 1\n",
        "c.yaml:2: not valid YAML: expected a single document in the stream but found another document",
    ),
    ("log:\n  every: \x07\n", "c.yaml:2: not valid YAML: character U+0007 is not allowed"),
    (b"log:\n  every: \xe9\n", "c.yaml:2: not UTF-8 (byte 0xe9)"),
    (
        "",
        "c.yaml: missing keys: model.arch, model.classes, optimizer.lr, "
        "training.batch_size, training.epochs; they have no default",
    ),
    ("log:\n  every: !!python/name:os.system\n", "c.yaml:2: 'every' cannot be read: tag "),
    ("log: !mine {}\n", "c.yaml:1: tag '!mine' is not allowed"),
    ("log: {every: !!int one}\n", "c.yaml:1: 'every' cannot be read: tag 'tag:yaml.org,2002:int' is not allowed"),
    ("log: &log {every: *log}\n", "c.yaml:1: 'log.every' is a mapping; allowed: text of the form"),
    ("data:\n  mean: &m [1, *m, 3]\n", "c.yaml:2: 'data.mean' is [1, ..., 3]; allowed: a list of 3 numbers"),
    ("training: {epochs: " + "9" * 5000 + "}\n", "c.yaml:1: 'epochs' cannot be read: an integer of 5000 digits"),
    ('a: "\\U00110000"\n', "c.yaml: not valid YAML: chr() arg not in range"),
    pytest.param("a: " + "[" * 3000, "c.yaml: not valid YAML: nested too deeply", marks=pytest.mark.slow),
    ("base: [a.yaml]\n", "c.yaml:1: 'base' is ['a.yaml']; allowed: the path of a YAML file"),
    ("\nbase: b.yaml\n", "c.yaml:2: 'base' is 'b.yaml'; no such file: b.yaml"),
    ("base: c.yaml\n", "c.yaml:1: 'base' forms a cycle: c.yaml -> c.yaml"),
    ('"two\\nlines": 1\n', "c.yaml:1: unknown section 'two\\nlines'; allowed: "),
]


@pytest.mark.parametrize(("text", "message"), BAD_FILES)
def test_a_bad_file_is_one_line_that_names_the_place(write, text, message):
    assert refusal(write("c.yaml", text)).startswith(message)


BAD_OVERRIDES = [
    ("optimizer.lr", "'optimizer.lr' has no '='; allowed: SECTION.KEY=VALUE"),
    ("=1", "unknown key ''; allowed: model.*, precision.*, "),
    ("model={arch: a}", "unknown key 'model'; allowed: arch, classes"),
    ("optimizer.lr=[1", "'optimizer.lr': not valid YAML: "),
    ("optimizer.lr=", "'optimizer.lr' is null; allowed: a number >= 1e-12 "),
    ("optimizer.lr=fast", "'optimizer.lr' is 'fast'; allowed: a number >= 1e-12 and <= 1000000"),
    ("optimizer.lr='0.1'", "'optimizer.lr' is '0.1'; allowed: a number >= 1e-12 "),
    ("optimizer.lr=true", "'optimizer.lr' is true; allowed: a number >= 1e-12 "),
    ("optimizer.lr=0", "'optimizer.lr' is 0; allowed: a number >= 1e-12 "),
    ("optimizer.lr=.inf", "'optimizer.lr' is '.inf'; allowed: a number >= 1e-12 "),
    ("optimizer.lr=1e999", "'optimizer.lr' is inf; allowed: a number >= 1e-12 "),
    ("optimizer.lr=1" + "0" * 400, "'optimizer.lr' is 100000"),
    ("optimizer.name=adam", "'optimizer.name' is 'adam'; allowed: SGD, MomentumSGD, CorrectedMomentumSGD, "),
    ("optimizer.momentum=1", "'optimizer.momentum' is 1; allowed: a number >= 0 and <= 0.999999, or null"),
    (
        "optimizer.trust_coefficient=0",
        "'optimizer.trust_coefficient' is 0; allowed: a number >= 1e-12 and <= 1000000, or null",
    ),
    ("update.fused=1", "'update.fused' is 1; allowed: true or false"),
    ("cudnn.autotune=false", "'cudnn.autotune' is false; allowed: off, heuristic, measure"),
    ("cudnn.workspace_mib=-1", "'cudnn.workspace_mib' is -1; allowed: an integer >= 0"),
    ("cudnn.workspace_mib=0.5", "'cudnn.workspace_mib' is 0.5; allowed: an integer >= 0"),
    ("cudnn.allow_tf32=off", "'cudnn.allow_tf32' is 'off'; allowed: true or false"),
    ("optimizer.weight_decay=-1e-4", "'optimizer.weight_decay' is -0.0001; allowed: a number >= 0"),
    ("model.classes=true", "'model.classes' is true; allowed: an integer >= 2"),
    ("model.classes=1", "'model.classes' is 1; allowed: an integer >= 2"),
    ("model.classes=10.0", "'model.classes' is 10.0; allowed: an integer >= 2"),
    ("model.arch=50", "'model.arch' is 50; allowed: text"),
    (
        "precision.compute=float64",
        "'precision.compute' is 'float64'; allowed: float16, bfloat16, float32, fp16, half, bf16, fp32, single",
    ),
    ("loss_scale.mode=null", "'loss_scale.mode' is null; allowed: dynamic, static, none"),
    ("loss_scale.init_scale=1000", "'loss_scale.init_scale' is 1000; allowed: a number that is a power of two"),
    ("loss_scale.init_scale=-2", "'loss_scale.init_scale' is -2; allowed: a number that is a power of two"),
    ("loss_scale.growth_factor=1", "'loss_scale.growth_factor' is 1; allowed: a number that is a power of two from 2 "),
    ("loss_scale.backoff_factor=1", "'loss_scale.backoff_factor' is 1; allowed: a number that is a power of two from "),
    ("loss_scale.min_scale=3", "'loss_scale.min_scale' is 3; allowed: "),
    ("loss_scale.max_scale=0", "'loss_scale.max_scale' is 0; allowed: "),
    ("loss_scale.growth_interval=0", "'loss_scale.growth_interval' is 0; allowed: an integer >= 1"),
    ("data.threads=true", "'data.threads' is true; allowed: an integer >= 1"),
    ("data.train=''", "'data.train' is ''; allowed: text that is not empty"),
    ("data.size=7", "'data.size' is 7; allowed: an integer >= 8"),
    ("data.flip=yes", "'data.flip' is 'yes'; allowed: true or false"),
    ("data.flip=1", "'data.flip' is 1; allowed: true or false"),
    ("data.crop_area=[0, 1]", "'data.crop_area' is [0, 1]; allowed: a list of 2 numbers with 0.0001 <= first "),
    ("data.crop_area=[0.5, 0.25]", "'data.crop_area' is [0.5, 0.25]; allowed: "),
    ("data.crop_area=[0.5, 1.5]", "'data.crop_area' is [0.5, 1.5]; allowed: "),
    ("data.augment=randaug", "'data.augment' is 'randaug'; allowed: none, rand, trivial"),
    ("data.augment_operations=15", "'data.augment_operations' is 15; allowed: an integer >= 1 and <= 14"),
    ("data.augment_magnitude=9.5", "'data.augment_magnitude' is 9.5; allowed: an integer >= 0 and <= 30"),
    ("data.augment_deviation=-1", "'data.augment_deviation' is -1; allowed: a number >= 0 and <= 30"),
    ("data.augment_probability=1.5", "'data.augment_probability' is 1.5; allowed: a number >= 0 and <= 1"),
    (
        "data.extra_operations=[invert, invert]",
        "'data.extra_operations' is ['invert', 'invert']; allowed: a list of strings from "
        f"{', '.join(EXTRA)}, none of them twice",
    ),
    ("data.erase=2", "'data.erase' is 2; allowed: a number >= 0 and <= 1"),
    ("data.repeats=0", "'data.repeats' is 0; allowed: an integer >= 1 and <= 1024"),
    ("data.mean=[1, 2]", "'data.mean' is [1, 2]; allowed: a list of 3 numbers"),
    ("data.mean=[1, 2, true]", "'data.mean' is [1, 2, true]; allowed: a list of 3 numbers"),
    ("data.mean=128", "'data.mean' is 128; allowed: a list of 3 numbers"),
    (
        "schedule.milestones=30",
        "'schedule.milestones' is 30; allowed: a list of numbers >= 0 and <= 1000000, each larger ",
    ),
    (
        "schedule.milestones=[30, 30]",
        "'schedule.milestones' is [30, 30]; allowed: a list of numbers >= 0 and <= 1000000, each ",
    ),
    (
        "schedule.milestones=[-1]",
        "'schedule.milestones' is [-1]; allowed: a list of numbers >= 0 and <= 1000000, each ",
    ),
    (
        "schedule.milestones=[30, x]",
        "'schedule.milestones' is [30, 'x']; allowed: a list of numbers >= 0 and <= 1000000, each ",
    ),
    ("data.std=[1, 2, 0]", "'data.std' is [1, 2, 0]; allowed: a list of 3 numbers >= 0.001 and <= 65504"),
    ("training.seed=-1", "'training.seed' is -1; allowed: an integer >= 0 and <= 4294967295"),
    ("training.seed=4294967296", "'training.seed' is 4294967296; allowed: an integer >= 0 and <= 4294967295"),
    ("training.device=xla", "'training.device' is 'xla'; allowed: text of the form auto, cpu, gpu or gpu:N"),
    ("training.device=gpu:x", "'training.device' is 'gpu:x'; allowed: "),
    ("training.device=gpu:", "'training.device' is a mapping; allowed: "),
    ("capture=1", "'capture' is 1; allowed: true, false, off, auto, required"),
    ("capture=1.0", "'capture' is 1.0; allowed: true, false, off, auto, required"),
    ("capture=", "'capture' is null; allowed: true, false, off, auto, required"),
    ("capture=requird", "'capture' is 'requird'; allowed: true, false, off, auto, required; did you mean 'required'?"),
    ("capture={mode: auto}", "'capture' is a mapping; allowed: true, false, off, auto, required"),
    ("capture.mode=true", "'capture.mode' is true; allowed: off, auto, required"),
    ("capture.max_graphs=0", "'capture.max_graphs' is 0; allowed: an integer >= 1"),
    (
        "capture.dynamic_shapes=eagre",
        "'capture.dynamic_shapes' is 'eagre'; allowed: capture, eager; did you mean 'eager'",
    ),
    ("capture.evaluation=auto", "'capture.evaluation' is 'auto'; allowed: true or false"),
    (
        "training=true",
        "unknown key 'training'; allowed: batch_size, accumulation_steps, epochs, seed, device, "
        "label_smoothing, loss, class_weights, bce_threshold, mixup, cutmix, cutmix_probability, mix_probability, "
        "ema_decay",
    ),
    ("log.every=0 epochs", "'log.every' is '0 epochs'; allowed: text of the form 'N epochs' or 'N iterations'"),
    ("log.every=1  epoch", "'log.every' is '1  epoch'; allowed: "),
    (
        "log.gradient_histogram=often",
        "'log.gradient_histogram' is 'often'; allowed: text of the form 'N epochs' or 'N iterations', with N from "
        "1 to 999999999, or null",
    ),
    ("snapshot.every=2", "'snapshot.every' is 2; allowed: "),
    ("snapshot.every='1 epoch\n'", "'snapshot.every' is "),
]


@pytest.mark.parametrize(("override", "message"), BAD_OVERRIDES)
def test_a_bad_override_is_one_line_that_says_what_is_allowed(write, override, message):
    assert refusal(write("c.yaml", merged()), [override]).startswith(f"--set: {message}")


UNKNOWN_KEYS = [
    ("lr=1", "optimizer.lr"),
    ("optimiser.lr=1", "optimizer.lr"),
    ("optimizer.LR=1", "optimizer.lr"),
    ("optimizer.alpha=1", "optimizer.lr"),
    ("optimizer.momentun=1", "optimizer.momentum"),
    ("model.num_classes=1", "model.classes"),
    ("schedule.epochs=1", "training.epochs"),
    ("log.weigth_decay=1", "optimizer.weight_decay"),
    ("training.batchsize=1", "training.batch_size"),
    ("precision.dtype=1", "precision.compute"),
    ("data.workers=1", "data.threads"),
    ("optimizer.eta=1", "optimizer.trust_coefficient"),
    ("cudnn.max_workspace_size=1", "cudnn.workspace_mib"),
    ("training.gradient_accumulation_steps=2", "training.accumulation_steps"),
    ("capture.cache_size=2", "capture.max_graphs"),
    ("schedule.warmup=5", "schedule.warmup_epochs"),
    ("loss_scale.init=1", "loss_scale.init_scale"),
    ("optimizer.lr_images=256", "optimizer.base_batch_size"),
    ("cudnn.tf32=true", "cudnn.allow_tf32"),
]


@pytest.mark.parametrize(("override", "near"), UNKNOWN_KEYS)
def test_an_unknown_key_gets_the_nearest_name(write, override, near):
    assert refusal(write("c.yaml", merged()), [override]).endswith(f"; did you mean '{near}'?")


def test_a_key_like_no_other_gets_no_proposal(write):
    assert "did you mean" not in refusal(write("c.yaml", merged()), ["optimizer.xyzzy=1"])


IMPOSSIBLE = [
    (
        {"data": {"size": 224, "resize": 200}},
        [],
        "c.yaml:8: impossible combination: 'data.size' is 224 (c.yaml:7), 'data.val_size' is null (default), "
        "'data.resize' is 200 (c.yaml:8); allowed: data.val_size, or data.size if that is null, <= data.resize",
    ),
    (
        {"data": {"resize": 256}},
        ["data.size=288"],
        "--set: impossible combination: 'data.size' is 288 (--set), 'data.val_size' is null (default), "
        "'data.resize' is 256 (c.yaml:7); allowed: data.val_size, or data.size if that is null, <= data.resize",
    ),
    (
        {"data": {"size": 224, "resize": 256}},
        ["data.size=288"],
        "--set: impossible combination: 'data.size' is 288 (--set), 'data.val_size' is null (default), "
        "'data.resize' is 256 (c.yaml:8); ",
    ),
    (
        {"data": {"size": 128, "resize": 200}},
        ["data.val_size=224"],
        "--set: impossible combination: 'data.size' is 128 (c.yaml:7), 'data.val_size' is 224 (--set), "
        "'data.resize' is 200 (c.yaml:8); ",
    ),
    (
        {},
        ["data.train=null"],
        "--set: impossible combination: 'data.format' is 'auto' (default), 'data.train' is null (--set), "
        "'data.val' is 'v' (c.yaml:6), 'data.synthetic_images' is null (default); allowed: data.train and "
        "data.val, without data.synthetic_images; with data.format synthetic only the latter",
    ),
    ({}, ["data.format=synthetic", "data.synthetic_images=100"], "--set: impossible combination: 'data.format' is "),
    ({}, ["data.root=r"], "--set: impossible combination: 'data.format' is 'auto' (default), 'data.root' is 'r'"),
    (
        {"data": {"augment": "trivial"}},
        ["data.augment_magnitude=10"],
        "--set: impossible combination: 'data.augment' is 'trivial' (c.yaml:7), 'data.augment_operations' is 2 "
        "(default), 'data.augment_magnitude' is 10 (--set), 'data.augment_deviation' is 0.0 (default), "
        "'data.augment_probability' is 1.0 (default); allowed: data.augment_operations 2, data.augment_magnitude "
        "9, data.augment_deviation 0.0, data.augment_probability 1.0 unless data.augment is rand",
    ),
    (
        {"data": {"augment": "trivial"}},
        ["data.extra_operations=[invert]"],
        "--set: impossible combination: 'data.augment' is 'trivial' (c.yaml:7), 'data.extra_operations' is "
        "['invert'] (--set); allowed: data.extra_operations only with data.augment rand",
    ),
    (
        {"model": {"memory_format": "nchw", "fuse": False}},
        ["data.pad_channels=true"],
        "--set: impossible combination: 'model.memory_format' is 'nchw' (c.yaml:4), "
        "'data.pad_channels' is true (--set); ",
    ),
    (
        {},
        ["schedule.kind=step"],
        "--set: impossible combination: 'schedule.kind' is 'step' (--set), 'schedule.milestones' is [] (default); "
        "allowed: schedule.milestones exactly with schedule.kind step",
    ),
    ({}, ["schedule.milestones=[30]"], "--set: impossible combination: 'schedule.kind' is 'cosine' (default), "),
    (
        {},
        ["schedule.kind=constant", "schedule.end_lr=0.1"],
        "--set: impossible combination: 'schedule.kind' is 'constant' (--set), 'schedule.end_lr' is 0.1 (--set); ",
    ),
    (
        {},
        ["schedule.end_lr=0.75"],
        "--set: impossible combination: 'schedule.end_lr' is 0.75 (--set), 'optimizer.lr' is 0.5 (c.yaml:",
    ),
    (
        {"loss_scale": {"min_scale": 131072}},
        [],
        "c.yaml:13: impossible combination: 'loss_scale.min_scale' is 131072.0 (c.yaml:13), "
        "'loss_scale.init_scale' is 65536.0 (default), ",
    ),
    (
        {},
        ["model.memory_format=nchw", "model.fuse=true"],
        "--set: impossible combination: 'model.memory_format' is 'nchw' (--set), 'model.fuse' is true (--set); "
        "allowed: model.fuse only with model.memory_format nhwc",
    ),
    (
        {},
        ["model.memory_format=nchw", "model.fuse=false", "precision.compute=bfloat16"],
        "--set: impossible combination: 'precision.compute' is 'bfloat16' (--set), "
        "'model.memory_format' is 'nchw' (--set); "
        "allowed: precision.compute bfloat16 only with model.memory_format nhwc",
    ),
    ({}, ["loss_scale.init_scale=33554432"], "--set: impossible combination: 'loss_scale.min_scale' is "),
    (
        {"optimizer": {"momentum": 0.9}},
        ["optimizer.name=Adam"],
        "--set: impossible combination: 'optimizer.name' is 'Adam' (--set), "
        "'optimizer.momentum' is 0.9 (c.yaml:9); allowed: optimizer.momentum only with "
        "MomentumSGD, CorrectedMomentumSGD, NesterovAG, RMSpropGraves, LARS, SGDW, ScheduleFreeSGD; null with the "
        "others",
    ),
    (
        {},
        ["optimizer.nesterov=true"],
        "--set: impossible combination: 'optimizer.name' is 'CorrectedMomentumSGD' (default), 'optimizer.nesterov' "
        "is true (--set); allowed: optimizer.nesterov only with SGDW",
    ),
    (
        {},
        ["optimizer.name=ScheduleFreeSGD"],
        "--set: impossible combination: 'optimizer.name' is 'ScheduleFreeSGD' (--set), "
        "'schedule.kind' is 'cosine' (default); allowed: schedule.kind constant with ScheduleFreeSGD; a warm-up is "
        "allowed",
    ),
    (
        {"schedule": {"kind": "constant"}},
        ["optimizer.name=ScheduleFreeSGD", "optimizer.momentum=0"],
        "--set: impossible combination: 'optimizer.name' is 'ScheduleFreeSGD' (--set), "
        "'optimizer.momentum' is 0.0 (--set); allowed: optimizer.momentum above 0 with ScheduleFreeSGD",
    ),
    (
        {"schedule": {"kind": "constant"}},
        ["optimizer.name=ScheduleFreeSGD", "training.ema_decay=0.9"],
        "--set: impossible combination: 'optimizer.name' is 'ScheduleFreeSGD' (--set), "
        "'training.ema_decay' is 0.9 (--set); allowed: training.ema_decay null with ScheduleFreeSGD, which has its",
    ),
    (
        {"optimizer": {"trust_coefficient": 0.001}},
        ["optimizer.name=LAMB"],
        "--set: impossible combination: 'optimizer.name' is 'LAMB' (--set), "
        "'optimizer.trust_coefficient' is 0.001 (c.yaml:9); allowed: optimizer.trust_coefficient only with LARS; "
        "null with the others",
    ),
    (
        {"training": {"label_smoothing": 0.1}},
        ["training.loss=bce", "training.bce_threshold=0"],
        "--set: impossible combination: 'training.bce_threshold' is 0.0 (--set), 'training.label_smoothing' is 0.1",
    ),
    ({}, ["schedule.warmup_epochs=90"], "--set: impossible combination: 'schedule.warmup_epochs' is 90.0 (--set), "),
    (
        {"update": {"fused": False}},
        ["capture=true"],
        "--set: impossible combination: 'update.fused' is false (c.yaml:13), 'capture.mode' is 'auto' (--set); "
        "allowed: capture.mode off if update.fused is false: only the fused update can be captured",
    ),
    (
        {"training": {"device": "cpu"}, "capture": {"mode": "required"}},
        [],
        "c.yaml:14: impossible combination: 'training.device' is 'cpu' (c.yaml:12), 'capture.mode' is 'required' "
        "(c.yaml:14); allowed: capture.mode required only on a GPU, not with training.device cpu",
    ),
    (
        {"model": {"memory_format": "nchw", "fuse": False}, "capture": {"mode": "required"}},
        [],
        "c.yaml:15: impossible combination: 'model.memory_format' is 'nchw' (c.yaml:4), "
        "'capture.mode' is 'required' (c.yaml:15); allowed: capture.mode required only with "
        "model.memory_format nhwc: ",
    ),
]


@pytest.mark.parametrize(("sections", "overrides", "message"), IMPOSSIBLE)
def test_an_impossible_combination_names_every_value_and_its_place(write, sections, overrides, message):
    assert refusal(write("c.yaml", merged(**sections)), overrides).startswith(message)


EDGES = [
    ["data.size=256"],
    ["loss_scale.init_scale=1", "loss_scale.min_scale=1", "loss_scale.max_scale=1"],
    ["loss_scale.init_scale=33554432", "loss_scale.max_scale=null"],
    ["loss_scale.init_scale=33554432", "loss_scale.mode=static"],
    ["loss_scale.init_scale=0.5", "loss_scale.min_scale=1", "loss_scale.mode=none"],
    ["optimizer.name=Adam", "optimizer.momentum=null"],
    ["optimizer.name=NesterovAG", "optimizer.momentum=0"],
    ["optimizer.name=LARS", "optimizer.momentum=0", "optimizer.trust_coefficient=1"],
    ["schedule.warmup_epochs=89.5"],
    ["update.fused=false", "capture=false"],
    ["capture=true", "training.device=cpu", "model.memory_format=nchw", "model.fuse=false"],
    ["capture=required", "capture.max_graphs=1"],
    ["training.seed=4294967295", "training.device=gpu:1", "data.crop_area=[1, 1]"],
]


@pytest.mark.parametrize("overrides", EDGES)
def test_values_at_the_edge_of_what_is_allowed_load(write, overrides):
    load(write("c.yaml", merged()), overrides)


def test_a_base_may_be_a_config_that_comes_with_mixprec_unless_there_is_a_file_of_this_name(write):
    path = write("mine/c.yaml", "base: resnet50/fp16.yaml\noptimizer: {lr: 3}\n")
    config = load(path)
    assert (config.model.arch, config.precision.compute, config.optimizer.lr) == ("resnet50", "float16", 3.0)
    write("resnet50/fp16.yaml", merged())  # relative to the working directory, not to the file that says it
    assert load(path) == config
    write("mine/resnet50/fp16.yaml", merged(model={"classes": 7}))
    assert load(path).model.classes == 7


def test_a_base_that_is_missing_names_the_nearest_config_of_mixprec(write):
    message = refusal(write("c.yaml", "base: resnet50/90_ep.yaml\n"))
    assert message.startswith("c.yaml:1: 'base' is 'resnet50/90_ep.yaml'; no such file: resnet50/90_ep.yaml; ")
    assert message.endswith("; did you mean 'resnet50/90ep.yaml'?")


def test_a_mistake_in_a_base_is_reported_there_even_if_overridden(write):
    write("lib/a.yaml", merged(optimizer={"lr": "fast"}))
    path = write("c.yaml", "base: lib/a.yaml\noptimizer: {lr: 1}\n")
    assert (
        refusal(path, ["optimizer.lr=1"])
        == "lib/a.yaml:8: 'optimizer.lr' is 'fast'; allowed: a number >= 1e-12 and <= 1000000"
    )


def test_a_cycle_of_bases_is_refused_also_through_a_link(write):
    write("lib/a.yaml", "\nbase: ../link.yaml\n")
    write("c.yaml", "base: lib/a.yaml\n")
    os.symlink("c.yaml", "link.yaml")
    assert refusal("c.yaml") == (
        "lib/a.yaml:2: 'base' forms a cycle: c.yaml -> lib/a.yaml -> lib/../link.yaml; allowed: a file outside it"
    )


def test_a_file_that_cannot_be_read_is_named(write, tmp_path):
    assert refusal("none.yaml").startswith("none.yaml: no such file; mixprec comes with digits.yaml, resnet50/")
    assert refusal("two\nlines.yaml").startswith(r"two\nlines.yaml: no such file; ")
    assert refusal("resnet50/fp-16.yml").endswith("; did you mean 'resnet50/fp16.yaml'?")
    assert refusal(tmp_path) == f"{tmp_path}: cannot be read: Is a directory"
    assert ": cannot be read: " in refusal("a\0b")  # the rest is Python's, of each version another


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_without_permission_is_named(write):
    os.chmod(write("c.yaml", merged()), 0)
    assert refusal("c.yaml") == "c.yaml: cannot be read: Permission denied"


def test_a_config_error_is_a_value_error_that_survives_pickling(write):
    with pytest.raises(ValueError, match="no such file") as caught:
        load("none.yaml")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), str(copy)) == (ConfigError, str(caught.value))


# The way back to YAML


@pytest.mark.parametrize(
    "text",
    ["1e3", "+1", ".5", "010", "1_0", "0x1f", "null", "~", "true", "no", "2024-01-01", "1:30", "=", "<<", "- ", "a: b"]
    + [
        "# a",
        " a ",
        "a\n b\n",
        "\x00",
        "\x85",
        "a\u2028",
        "\ufeff",
        "\ud800",
        "ü 数",
        "😀",
        "a" * 300 + " " + "b" * 300,
    ],
)
def test_text_that_looks_like_something_else_survives_a_dump(write, text):
    config = load(write("c.yaml", merged()))
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, train=text))
    assert load(write("dumped.yaml", dump(config))).data.train == text


def test_the_header_names_source_overrides_and_version(write):
    config = load(write("c.yaml", merged()), ["optimizer.lr=2"])
    head = dump(config, source="c.yaml", overrides=["optimizer.lr=2", "data.train=a\nb"], version="1.2.3")
    assert head.splitlines()[:4] == [
        "# Resolved config, written by mixprec 1.2.3",
        "# from c.yaml",
        "# --set optimizer.lr=2",
        "# --set data.train=a\\nb",
    ]


def test_a_dumped_config_is_plain_yaml_for_other_readers(write):
    """PyYAML on its own reads the same values, also where YAML 1.1 would see a boolean or a date in a text."""
    config = load(write("c.yaml", merged()), ["cudnn.autotune=off", "data.train=2024-01-01"])
    assert (config.capture.mode, config.cudnn.autotune) == ("off", "off")
    expected = {
        section: {name: list(value) if isinstance(value, tuple) else value for name, value in keys.items()}
        for section, keys in dataclasses.asdict(config).items()
    }
    expected["optimizer"]["rates"] = {}
    assert yaml.safe_load(dump(config)) == expected


# Ways of keys


@pytest.mark.parametrize(
    ("section", "readers"), [("kfac", {"optimizers.py", "rates.py"}), ("memory", {"kept_activations.py"})]
)
def test_a_section_is_read_where_it_acts(section, readers):
    """From there on objects are handed over that know what they need."""
    modules = [*(ROOT / "mixprec/app/parts").glob("*.py"), *(ROOT / "mixprec/training").glob("*.py")]
    assert {module.name for module in modules if f"config.{section}" in module.read_text(encoding="utf-8")} == readers


# The files beside the code


@pytest.mark.parametrize("page", ["config", "config-tuning"])
def test_the_keys_in_the_docs_are_the_schema(page):
    """If it fails: ``make rules`` makes the lists anew."""
    lists = (ROOT / f"docs/{page}.md").read_text(encoding="utf-8").partition("\n# Keys\n\n")[2]
    assert lists == reference(page == "config-tuning")


def test_the_example_message_in_the_docs_is_the_real_one(write):
    path = write("configs/mine.yaml", "\n" * 10 + "optimizer:\n  learning_rate: 1\n")
    assert refusal(path) in (ROOT / "docs/config.md").read_text(encoding="utf-8").splitlines()


def test_digits_config_is_a_short_run_whose_loss_scale_moves():
    config = load(ROOT / "configs/digits.yaml")
    assert (config.model.arch, config.model.classes) == ("resnet8", 10)
    assert (config.data.train, config.data.val) == ("data/digits/train", "data/digits/val")
    assert not config.data.flip
    assert config.loss_scale.mode == "dynamic"
    assert config.loss_scale.growth_interval < 1442 // config.training.batch_size * config.training.epochs


@pytest.mark.parametrize(("name", "images"), [("digits", 1442), ("textures", 7000)])
def test_the_step_that_a_shipped_config_logs_is_of_a_batch_whose_gradients_fit_as_those_of_others(name, images):
    """The log has no gradient norm of a step that overflowed, which a last batch of few images does again and again."""
    config = load(ROOT / f"configs/{name}.yaml")
    rest = images % config.training.batch_size
    assert config.log.every == "1 epoch"
    assert config.data.last_batch == "drop" or rest == 0 or rest > config.training.batch_size / 4
    assert load(ROOT / "configs/resnet50/90ep.yaml").data.last_batch == "drop"


def test_90ep_is_the_recipe_of_deep_learning_examples():
    """Numbers from NVIDIA/DeepLearningExamples, PyTorch/Classification/ConvNets/resnet50v1.5/README.md."""
    config = load(ROOT / "configs/resnet50/90ep.yaml")
    assert (config.optimizer.momentum, config.optimizer.weight_decay) == (0.875, 1 / 32768)
    assert (config.optimizer.lr, config.optimizer.base_batch_size) == (0.256, 256)
    assert not config.optimizer.decay_norm_and_bias
    assert (config.schedule.kind, config.schedule.warmup_epochs, config.training.epochs) == ("cosine", 5, 90)
    assert config.training.label_smoothing == 0.1
    assert (config.data.size, config.data.resize, config.data.crop_area) == (224, 256, (0.08, 1.0))


# ranks, images a step, batch that is normalized, lr, momentum, weight decay, epochs of warm-up, steps of decay
POINTS = {
    "mlperf_lars": (1, 1632, 204, 7.4, 0.9, 5e-5, 2, 27476),
    "lars_8k": (128, 8192, 64, 17, 0.9, 2e-4, 5, 6095),
    "lars_32k": (256, 32768, 128, 21.2, 0.94, 2.5e-5, 16, 2267),
}


@pytest.mark.parametrize("name", POINTS)
def test_lars_is_a_reference_convergence_point(name):
    """resnet_ref_* in mlcommons/logging, mlperf_logging/rcp_checker/training_4.0.0/rcps_resnet.json."""
    config = load(ROOT / f"configs/resnet50/{name}.yaml")
    ranks, images, batch, lr, momentum, weight_decay, warmup, steps = POINTS[name]
    training, optimizer, schedule = config.training, config.optimizer, config.schedule
    assert ranks * training.batch_size * training.accumulation_steps == images
    assert training.batch_size == batch
    assert (optimizer.name, optimizer.lr, optimizer.base_batch_size) == ("LARS", lr, None)
    assert (optimizer.momentum, optimizer.weight_decay) == (momentum, weight_decay)
    assert (optimizer.trust_coefficient, optimizer.decay_norm_and_bias) == (0.001, False)
    assert (schedule.kind, schedule.power, schedule.end_lr) == ("poly", 2, 1e-4)
    assert (schedule.warmup_epochs, training.label_smoothing) == (warmup, 0.1)
    counted = 0 if name == "lars_32k" else warmup  # that point has the warm-up among its steps of decay, see the file
    assert training.epochs - counted == round(steps * images / 1281167)
    assert config.model.zero_init_residual == (name != "mlperf_lars")


def test_the_rows_of_the_talk_switch_one_thing_on_each():
    """What differs from one row to the next, and that the last one is the recipe with everything on."""
    rows = ["fp32", "fp16", "dali", "nhwc_fused_batched", "static_graph"]
    configs = [dataclasses.asdict(load(ROOT / f"configs/resnet50/{row}.yaml")) for row in rows]
    changes = [
        {
            (section, key): (value, after[section][key])
            for section, keys in before.items()
            for key, value in keys.items()
            if value != after[section][key]
        }
        for before, after in itertools.pairwise(configs)
    ]
    assert changes == [
        {("precision", "compute"): ("float32", "float16"), ("loss_scale", "mode"): ("none", "dynamic")},
        {("data", "loader"): ("pillow", "dali")},
        {
            ("model", "memory_format"): ("nchw", "nhwc"),
            ("model", "fuse"): (False, True),
            ("update", "fused"): (False, True),
        },
        {("capture", "mode"): ("off", "auto")},
    ]
    assert configs[-1] == dataclasses.asdict(load(ROOT / "configs/resnet50/90ep.yaml"))


@pytest.mark.parametrize("path", sorted((ROOT / "configs").rglob("*.yaml")), ids=lambda path: path.name)
def test_every_config_of_the_project_loads_with_the_networks_of_the_project(path):
    load(path, choices={"model.arch": sorted(MODELS)})


def test_loading_a_config_imports_nothing_heavy():
    code = (
        "import sys; from mixprec.app.config import load; load(sys.argv[1]); "
        "print(sorted({'numpy', 'chainer', 'cupy', 'PIL', 'matplotlib', 'nvidia'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, str(ROOT / "configs/digits.yaml")]
    assert subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout == "[]\n"


# Mappings


def test_a_mapping_keeps_its_order_in_files_overrides_and_dumps(write):
    path = write("c.yaml", merged(optimizer={"rates": {"*": 0.5, "/a/*": 2, "10": 0}, "freeze": ["/b/*", "/c"]}))
    config = load(path)
    assert config.optimizer.rates == (("*", 0.5), ("/a/*", 2.0), ("10", 0.0))
    assert config.optimizer.freeze == ("/b/*", "/c")
    assert load(write("dumped.yaml", dump(config))) == config
    over = load(path, ['optimizer.rates={"/fc/*": 10, /a/*: 1e-1}', "optimizer.freeze=[]"]).optimizer
    assert (over.rates, over.freeze) == ((("/fc/*", 10.0), ("/a/*", 0.1)), ())
    turned = load(path, ['optimizer.rates={"/a/*": 1e-1, "/fc/*": 10}'])
    assert turned.optimizer.rates != over.rates
    assert flat(turned)["optimizer.rates"] == [["/a/*", 0.1], ["/fc/*", 10.0]]


NO_MAPPINGS = [
    ("optimizer.rates=[1]", "--set: 'optimizer.rates' is [1]; allowed: a mapping from strings to numbers, each"),
    ("optimizer.rates=0.5", "--set: 'optimizer.rates' is 0.5; allowed: a mapping"),
    ("optimizer.rates={a: b}", "--set: 'optimizer.rates' is {'a': 'b'}; allowed: a mapping"),
    ("optimizer.rates={a: -1}", "--set: 'optimizer.rates' is {'a': -1}; allowed: a mapping"),
    ("optimizer.rates={a: {b: 1}}", "--set: 'optimizer.rates' is {'a': a mapping}; allowed: a mapping"),
    ("optimizer.rates={a: 1, a: 2}", "--set:1: duplicate key 'a'; it is already on line 1"),
    ("optimizer.rates={[a]: 1}", "--set:1: found a list or mapping as a key; allowed: a name"),
    ("optimizer.freeze=/fc/*", "--set: 'optimizer.freeze' is '/fc/*'; allowed: a list of strings"),
    ("optimizer.freeze=[1]", "--set: 'optimizer.freeze' is [1]; allowed: a list of strings"),
    ("optimizer.lr={a: 1}", "--set: 'optimizer.lr' is a mapping; allowed: a number"),
]


@pytest.mark.parametrize(("override", "message"), NO_MAPPINGS)
def test_what_is_no_mapping_is_refused(write, override, message):
    found = refusal(write("c.yaml", merged()), [override])
    assert message in found
    assert "\n" not in found

"""Configs of earlier versions: keys by their former names, and keys that are constants now."""

import dataclasses

import pytest
import yaml

from mixprec import announcements
from mixprec.config import Config, ConfigError, current, dump, flat, load
from mixprec.config.declaration import former_names, keys, sections
from tests.config.mangled import REQUIRED

FORMER = former_names(Config)
# Two values of each key, the first of which is not its default.
VALUES = {
    "model.layout": ("nchw", "nhwc"),
    "loss_scale.init": (1024.0, 2048.0),
    "loss_scale.growth": (4.0, 8.0),
    "loss_scale.backoff": (0.25, 0.125),
    "loss_scale.interval": (7, 8),
    "loss_scale.floor": (0.5, None),
    "loss_scale.cap": (65536.0, None),
    "optimizer.lr_images": (256, None),
    "update.batched": (False, True),
    "cudnn.tf32": (True, False),
    "training.accumulate": (2, 3),
    "capture.graphs": (1, 2),
    "capture.other_shapes": ("eager", "capture"),
}


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(announcements, "_said", set())
    write("c.yaml")


def write(path, **values):
    """Writes the smallest config, with more keys: dots are written as two underscores."""
    content = {}
    for name, value in {**REQUIRED, **{name.replace("__", "."): value for name, value in values.items()}}.items():
        section, _, key = name.partition(".")
        content.setdefault(section, {})[key] = value
    with open(path, "w") as file:
        yaml.safe_dump(content, file, sort_keys=False)


def line_of(path, key):
    with open(path) as file:
        (number,) = (number for number, line in enumerate(file, 1) if line.strip().startswith(f"{key}:"))
    return number


def test_each_former_name_has_values_here():
    assert VALUES.keys() == FORMER.keys()
    assert not FORMER.keys() & keys(Config).keys()
    assert not Config.CONSTANTS.keys() & (keys(Config).keys() | FORMER.keys())


@pytest.mark.parametrize("former", FORMER)
def test_a_former_name_in_a_file_is_the_key_and_one_line_says_so(caplog, former):
    value, _ = VALUES[former]
    fuse = ["model.fuse=false"] if value == "nchw" else []
    write("old.yaml", **{former: value})
    write("new.yaml", **{FORMER[former]: value})
    config = load("old.yaml", fuse)
    assert flat(config)[FORMER[former]] == value
    assert load("old.yaml", fuse) == config
    line = line_of("old.yaml", former.partition(".")[2])
    assert caplog.messages == [f"old.yaml:{line}: {former} is called {FORMER[former]} now"]
    assert load("new.yaml", fuse) == config
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("former", FORMER)
def test_a_former_name_in_an_override_is_the_key_and_one_line_says_so(caplog, former):
    value, _ = VALUES[former]
    fuse = ["model.fuse=false"] if value == "nchw" else []
    text = yaml.safe_dump([value], default_flow_style=True).strip()[1:-1]
    config = load("c.yaml", [*fuse, f"{former}={text}"])
    assert caplog.messages == [f"--set: {former} is called {FORMER[former]} now"]
    assert config == load("c.yaml", [*fuse, f"{FORMER[former]}={text}"])
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("former", FORMER)
def test_names_do_not_matter_to_which_value_wins(former):
    first, second = VALUES[former]
    fuse = ["model.fuse=false"] if "nchw" in (first, second) else []
    for lower, upper in ((former, FORMER[former]), (FORMER[former], former)):
        write("base.yaml", **{lower: first})
        section, _, key = upper.partition(".")
        with open("d.yaml", "w") as file:
            yaml.safe_dump({"base": "base.yaml", section: {key: second}}, file)
        assert flat(load("d.yaml", fuse))[FORMER[former]] == second
        assert flat(load("d.yaml", [*fuse, f"{lower}={yaml.safe_dump(first).split()[0]}"]))[FORMER[former]] == first


@pytest.mark.parametrize(("first", "second"), [("init_scale", "init"), ("init", "init_scale")])
def test_a_key_by_both_of_its_names_in_one_file_is_a_duplicate(first, second):
    """The message names the two lines as they are in the file, today's name first or second."""
    write("d.yaml", **{f"loss_scale__{first}": 2.0, f"loss_scale__{second}": 2.0})
    there, here = line_of("d.yaml", first), line_of("d.yaml", second)
    with pytest.raises(ConfigError) as caught:
        load("d.yaml")
    words = f"duplicate key 'loss_scale.{second}': 'loss_scale.{first}' is already on line {there}"
    assert str(caught.value) == f"d.yaml:{here}: {words}"


def test_a_bad_value_by_a_former_name_is_refused_by_the_name_of_today():
    with pytest.raises(ConfigError, match=r"^--set: 'loss_scale\.init_scale' is 3; allowed: a number that is a power"):
        load("c.yaml", ["loss_scale.init=3"])


@pytest.mark.parametrize(("name", "constant"), Config.CONSTANTS.items())
def test_a_key_that_is_a_constant_now_changes_nothing_and_one_line_says_so(caplog, name, constant):
    written = {None: "null", True: "true"}.get(constant, str(constant))
    write("d.yaml", **{name: constant})
    plain = load("c.yaml")
    assert load("d.yaml") == load("d.yaml") == plain
    line = line_of("d.yaml", name.partition(".")[2])
    assert caplog.messages == [f"d.yaml:{line}: {name} is no longer a key; it is always {written}"]
    assert load("c.yaml", [f"{name}=5"]) == plain
    assert caplog.messages[1:] == [f"--set: {name} is no longer a key; 5 has no effect: it is always {written}"]


@pytest.mark.parametrize(("other", "value"), [("channels_last", "nhwc"), ("contiguous", "nchw")])
def test_a_memory_format_has_the_name_that_pytorch_gives_it(caplog, other, value):
    config = load("c.yaml", [f"model.memory_format={other}"])
    assert config == load("c.yaml", [f"model.memory_format={value}"])
    assert yaml.safe_load(dump(config))["model"]["memory_format"] == value
    assert caplog.messages == []


def test_a_resolved_config_has_the_names_of_today():
    names = {f"{section}.{key}" for section, values in yaml.safe_load(dump(load("c.yaml"))).items() for key in values}
    assert names == keys(Config).keys()
    assert {section.partition(".")[0] for section in names} == sections(Config).keys()


def test_values_that_an_earlier_version_has_written_are_had_by_the_names_of_today():
    values = flat(load("c.yaml"))
    former = {today: name for name, today in FORMER.items()}
    assert current({former.get(name, name): value for name, value in values.items()}) == values
    assert current(values) == values


def test_a_proposal_is_a_name_of_today():
    for name, key in keys(Config).items():
        section = name.partition(".")[0]
        assert not {f"{section}.{alias}" for alias in key.aliases} & {*FORMER, *Config.CONSTANTS, *keys(Config)}
        assert dataclasses.is_dataclass(sections(Config)[section])

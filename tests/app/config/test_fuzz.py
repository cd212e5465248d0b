"""1,000 damaged configs: each loads, and comes back from what is written of it, or is refused in one line."""

import os
from random import Random

import pytest

from mixprec.app.config import ConfigError, dump, load
from tests.app.config import mangled
from tests.cases import first
from tests.guard import guarded

SEEDS, CONFIGS = 4, 250


@pytest.fixture
def work(tmp_path, monkeypatch):
    """Configs that a ``base`` may name: one of each other's, a good one, a pipe."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.yaml").write_text("base: b.yaml\noptimizer: {lr: 1}\n")
    (tmp_path / "b.yaml").write_text("base: digits.yaml\n")
    os.mkfifo("pipe.yaml")
    return tmp_path


def tried(seed, count):
    """Loads so many configs, and returns how many of them could be."""
    random, loaded = Random(seed), 0
    for number in range(count):
        data, overrides = mangled.config(random)
        with open("c.yaml", "wb") as file:
            file.write(data)
        try:
            loaded += _loads("c.yaml", overrides)
        except BaseException as error:
            what = f"seed {seed}, config {number}: {data!r}, overrides {overrides!r}"
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    return loaded


def _loads(path, overrides):
    try:
        config = load(path, overrides)
    except ConfigError as error:
        message = str(error)
        assert message.isprintable(), f"not one printable line: {message!r}"
        assert 10 < len(message) <= 1000, f"{len(message)} characters: {message}"
        return False
    text = dump(config, source=path, overrides=overrides, version="1.2.3")
    with open("dumped.yaml", "w", encoding="utf-8") as file:
        file.write(text)
    again = load("dumped.yaml")
    assert again == config
    assert repr(again) == repr(config)
    return True


@pytest.mark.parametrize("seed", first(0, range(SEEDS), 1))
def test_a_damaged_config_loads_or_is_refused_in_one_line(work, seed):
    with guarded(120):
        loaded = tried(seed, CONFIGS)
    assert CONFIGS // 20 < loaded < CONFIGS * 3 // 4, f"seed {seed}: {loaded} of {CONFIGS} load, which tries too little"

"""Extensions of the user's own in the training command: called, logged, saved, and every way to fail."""

import pytest

from tests.app.run import finished_run, own_code

HOOKS = """
import chainer
from chainer import training
from chainer.training import PRIORITY_WRITER, Extension

seen = []


class Counter(Extension):
    priority = PRIORITY_WRITER

    def __init__(self):
        self.count = 0

    def initialize(self, trainer):
        seen.append(("initialize", self.count))

    def __call__(self, trainer):
        self.count += 1
        chainer.report({"count": self.count})

    def finalize(self):
        seen.append(("finalize", self.count))

    def serialize(self, serializer):
        self.count = serializer("count", self.count)


class Other(Counter):
    def __call__(self, trainer):
        self.count += 1


made = Other()
made.name = "made"


@training.make_extension(trigger=(1, "epoch"), priority=50)
def last_entry(trainer):
    seen.append(trainer.get_extension("LogReport").log[-1]["count"])


@training.make_extension(trigger=(1, "epoch"))
def each_epoch(trainer):
    seen.append(("epoch", trainer.updater.iteration))


def each_step(trainer):
    seen.append(trainer.updater.iteration)


class NeedsArguments(Extension):
    def __init__(self, path):
        self.path = path


class NotCalled(Extension):
    pass


class Plots(Counter):
    pass


class BadTrigger(Counter):
    trigger = 0, "epoch"


BadPriority = type("BadPriority", (Counter,), {"priority": "high"})
BadName = type("BadName", (Counter,), {"name": 3})


def no_trainer():
    pass


seven = 7
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    return own_code.enter(tmp_path, monkeypatch, {"hooks": HOOKS})


def _seen():
    import hooks

    seen = list(hooks.seen)
    hooks.seen.clear()
    return seen


def _settings(extensions, **settings):
    return own_code.synthetic(log__extensions=extensions, **settings)


def test_classes_objects_and_functions_are_called_and_what_they_report_is_logged(run, tmp_path):
    """5 steps. Reported values are means over an entry, as all others."""
    process = run("--out", "out", **_settings("[hooks:last_entry, hooks:Counter, hooks:each_step, hooks:made]"))
    assert (process.returncode, process.stderr) == (0, "")
    assert _seen() == [("initialize", 0), ("initialize", 0), 1, 2, 3, 4, 5, 3.0, ("finalize", 5), ("finalize", 5)]
    assert [entry["count"] for entry in finished_run.log(tmp_path / "out")] == [3.0]


def test_a_dry_run_makes_them_and_does_not_run_them(run):
    assert run("--dry-run", **_settings("[hooks:Counter, hooks:each_step]")).returncode == 0
    assert _seen() == []


def test_a_run_goes_on_with_their_states_and_with_other_ones(run, tmp_path):
    """The first has its state; the second is new, and begins afresh; the third is gone, and comes back without one.

    A new one with a trigger waits for it.
    """
    for epochs, extensions, first in (
        (1, "[hooks:Counter, hooks:made]", [0, 0]),
        (2, "[hooks:Other, hooks:Counter, hooks:each_step]", [0, 5]),
        (3, "[hooks:each_epoch]", [15]),
        (4, "[hooks:Counter]", [0]),
    ):
        process = run("--out", "out", "--resume", "auto", **_settings(extensions, training__epochs=epochs))
        assert (process.returncode, process.stderr) == (0, "")
        assert [value for name, value in filter(_is_pair, _seen()) if name != "finalize"] == first
    assert "changed: log.extensions ['hooks:each_epoch'] -> ['hooks:Counter']\n" in process.stdout


def _is_pair(value):
    return isinstance(value, tuple)


WANTED = "; wanted: a chainer.training.Extension, its class, or a function that is called with the trainer"
BAD = {
    "nowhere:Hook": "there is no module 'nowhere' in the working directory",
    "hooks:Conter": "hooks has no attribute Conter in hooks.py; did you mean 'Counter'?",
    "hooks:seven": f"found int, which cannot be called with the trainer{WANTED}",
    "hooks:NotCalled": f"found NotCalled, which cannot be called with the trainer{WANTED}",
    "hooks:NeedsArguments": "called without arguments it raises TypeError: NeedsArguments.__init__() missing 1 ",
    "hooks:no_trainer": "it is called with the trainer, and takes (): too many positional arguments",
}


@pytest.mark.parametrize("path", BAD)
def test_a_bad_extension_is_one_line_before_the_data_are_looked_at(run, tmp_path, path):
    before = sorted(tmp_path.rglob("*"))
    process = run(log__extensions=f"[hooks:Counter, {path}]", data__train="nowhere")
    own_code.check_refused(process, tmp_path, before, BAD[path])
    assert process.stderr.startswith(f"error: --set: 'log.extensions' has '{path}': ")


REFUSED = [
    ("[hooks:Counter, hooks:Counter]", "'hooks:Counter': the run already has an extension named 'Counter'; give"),
    ("[hooks:Plots]", "'hooks:Plots': the run already has an extension named 'Plots'; give it another name"),
    ("[hooks:BadTrigger]", "'hooks:BadTrigger': its trigger is [0, 'epoch']; wanted: (N, 'epoch') or (N, 'iteration'"),
    ("[hooks:BadPriority]", "'hooks:BadPriority': its priority is 'high'; wanted: a number"),
    ("[hooks:BadName]", "'hooks:BadName': its name is 3; wanted: text"),
    ("[hooks.Counter]", "; did you mean '[hooks:Counter]'?"),
    ("[Counter]", "'log.extensions' is ['Counter']; allowed: a list of strings that are import paths, package"),
    ("hooks:Counter", "'log.extensions' is 'hooks:Counter'; allowed: a list of strings that are import paths"),
]


@pytest.mark.parametrize(("extensions", "message"), REFUSED)
def test_extensions_that_cannot_be_added_are_refused_before_anything_is_written(run, tmp_path, extensions, message):
    before = sorted(tmp_path.rglob("*"))
    process = run("--out", "out", **_settings(extensions))
    own_code.check_refused(process, tmp_path, before, message)

"""Standard output and error that cannot be written: what each command does then, and the streams themselves."""

import ast
import contextlib
import errno
import os
import pty
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mixprec.app.commands import main
from mixprec.base import standard_streams
from mixprec.base.messages import encoding_hint
from mixprec.data.sources import progress
from tests import ROOT
from tests.cases import first

PARTS = {  # of other commands, which read what they print
    "mixprec.app.monitor.work",
    *(f"benchmarks.{name}" for name in ("gpu_check.gpu_tests", "gpu_check.segments", "gpu_check.usable_gpu")),
    "benchmarks.scaling.rank_processes",
}
ALONE = {
    "mixprec.distributed.rank_watch",  # imports nothing of mixprec
    "mixprec.optimizer.rules.generate",  # writes a file of the checkout, for who changes a rule
}
FULL = os.strerror(errno.ENOSPC)
STATES = (
    {">&-": (1, "error: standard output: it is closed\n"), "2>&-": (0, ""), "<&- >&- 2>&-": (1, "")}
    | {">/dev/full": (1, f"error: standard output: {FULL}\n"), "2>/dev/full": (0, ""), ">/dev/full 2>&1": (1, "")}
    | {"| true": (0, ""), "2>&1 | true": (0, ""), "| head -1": (0, "")}
)


def _programs():
    """Returns ``{name: tree}`` of all modules that do something when they are run."""
    found = {}
    for folder in ("scripts", "mixprec", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if '__name__ == "__main__"' in (text := path.read_text("utf-8")):
                name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
                found[name] = ast.parse(text)
    return found


PROGRAMS = _programs()
COMMANDS = sorted(PROGRAMS.keys() - PARTS - ALONE)
DOORS = {name for name, tree in PROGRAMS.items() if "main.console(" in ast.unparse(tree)}  # to the command mixprec
QUICK = "mixprec"  # to start; all begin and end alike, as the first two tests show


@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - ALONE))
def test_each_program_makes_its_streams_safe_before_it_imports_what_opens_files(name):
    tree = PROGRAMS[name]
    blocks = [node for node in tree.body if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)]
    begin = ast.unparse(blocks[0].body[0])
    if name not in DOORS:
        assert begin in ("standard_streams.guard()", "command_process.begin()", "command_process.begin(is_rank=True)")
    elif name == "mixprec":
        assert begin == "main.console()"
    else:
        assert begin.removeprefix("main.console('").removesuffix("')") in main.COMMANDS
    own = _own_imports(tree.body[: tree.body.index(blocks[0])])
    assert all(module.startswith(("mixprec.base.", "mixprec.app.commands.")) for module in own)
    if name in COMMANDS and name not in DOORS:
        assert ast.unparse(blocks[-1]).split("sys.exit(")[1].startswith("command_process.run(")


def test_the_command_makes_its_streams_safe_before_it_imports_what_opens_files():
    """Each command is a module that it imports afterwards."""
    tree = ast.parse(Path(main.__file__).read_text("utf-8"))
    others = [module for module in _own_imports(tree.body) if not module.startswith("mixprec.base.")]
    assert others == ["mixprec.app.commands.command_process"]
    (console,) = (node for node in tree.body if getattr(node, "name", None) == "console")
    _, _, begin, end = map(ast.unparse, console.body)
    assert begin.startswith("command_process.begin(")
    assert end == "sys.exit(standard_streams.run(lambda: main(argv)))"


def _own_imports(nodes):
    """Returns the dotted names that statements import, without modules of Python."""
    found = []
    for node in nodes:
        if isinstance(node, ast.Import):
            found += [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{each.name}" for each in node.names]
    return [name for name in found if name.partition(".")[0] not in sys.stdlib_module_names]


def _run(folder, name, state, *arguments):
    """Runs a command in a shell; returns exit code, standard output and standard error, where they lead to."""
    program = ["-m", *name.split()] if not name.startswith("scripts.") else [str(ROOT / "scripts" / f"{name[8:]}.py")]
    script = f'{{ {{ "$@" 3>&-; echo $? >&3; }} {state}; }} 3>code'
    done = subprocess.run(
        ["bash", "-c", script, "bash", sys.executable, *program, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return int((folder / "code").read_text()), done.stdout, done.stderr


def _assert_ends_well(folder, name, state):
    code, printed, errors = _run(folder, name, state, "--help")
    assert (code, errors) == STATES[state]
    if "head" in state:
        assert printed.count("\n") == 1
    else:
        assert bool(printed) == (state in ("2>&-", "2>/dev/full"))


@pytest.mark.parametrize("state", first(4, STATES))
def test_a_command_whose_output_cannot_be_written_ends_with_one_line(tmp_path, state):
    _assert_ends_well(tmp_path, QUICK, state)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [*(name for name in COMMANDS if name not in DOORS), *(f"mixprec {name}" for name in main.COMMANDS)]
)
def test_any_other_command_does_as_well(tmp_path, name):
    _assert_ends_well(tmp_path, name, ">/dev/full")


def test_a_complaint_that_cannot_be_written_leaves_the_exit_code(tmp_path):
    assert _run(tmp_path, QUICK, ">&- 2>&-", "--no-such-option") == (2, "", "")


def test_a_file_does_not_get_the_number_of_a_closed_stream(tmp_path):
    """Otherwise what another process or a C library prints is in it."""
    (tmp_path / "program.py").write_text(
        "import os\n"
        "from mixprec.base import standard_streams\n"
        "standard_streams.guard()\n"
        "file = os.open('file', os.O_WRONLY | os.O_CREAT)\n"
        "os.system('echo printed; echo said >&2')\n"
        "os.write(file, b'kept')\n"
        "print('lost')\n"
    )
    assert _run(tmp_path, "program", "<&- >&- 2>&-") == (0, "", "")
    assert (tmp_path / "file").read_text() == "kept"


@pytest.fixture
def put(monkeypatch):
    """Puts a stream in the place of one of ``sys``: a descriptor as Python opens it at the start."""
    with contextlib.ExitStack() as stack:

        def put(attribute, number, **settings):
            stream = stack.enter_context(os.fdopen(number, "w", **settings))
            monkeypatch.setattr(sys, attribute, stream)
            return stream

        yield put
        monkeypatch.undo()


def _lost(kind):
    """Returns a descriptor that cannot be written."""
    if kind == "full":
        return os.open("/dev/full", os.O_WRONLY)
    end, number = os.pipe() if kind == "unread" else pty.openpty()
    os.close(end)
    return number


STREAMS = [
    ("stdout", "err", "full", errno.ENOSPC),
    ("stderr", "out", "unread", errno.EPIPE),
    ("stdout", "err", "hung up", errno.EIO),
]


@pytest.mark.parametrize(("attribute", "other", "kind", "number"), STREAMS)
def test_in_a_view_work_goes_on_and_the_other_stream_says_so_once(put, capsys, attribute, other, kind, number):
    stream = put(attribute, _lost(kind))
    with standard_streams.view("it goes on"):
        for _ in range(3):
            print("text", file=getattr(sys, attribute), flush=True)
    assert getattr(sys, attribute) is stream
    what = {"stdout": "standard output", "stderr": "standard error"}[attribute]
    told = capsys.readouterr()
    assert getattr(told, other) == f"{what}: {os.strerror(number)}; it goes on\n"


@pytest.mark.parametrize(("attribute", "is_none"), [("stdout", True), ("stderr", False)])
def test_streams_that_are_none_or_closed(put, monkeypatch, capsys, attribute, is_none):
    if is_none:
        monkeypatch.setattr(sys, attribute, None)
    else:
        put(attribute, _lost("full")).close()
    with standard_streams.view("it goes on"):
        print("text", file=getattr(sys, attribute), flush=True)
    told = capsys.readouterr()
    assert "".join(told).endswith(": it is closed; it goes on\n")


def test_what_was_lost_before_a_view_is_said_in_it(put, capsys):
    """Such as what a network of the user's prints when it is imported; nothing is left to complain of at the end."""
    put("stdout", _lost("full"))
    with standard_streams.guarded():
        print("text", flush=True)
        with standard_streams.view("it goes on"):
            pass
        assert standard_streams.run(lambda: 0) == 0
    assert capsys.readouterr().err == f"standard output: {FULL}; it goes on\n"


def test_nothing_is_lost_where_nothing_is_written(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with standard_streams.guarded():
        print(end="", flush=True)
        assert standard_streams.run(lambda: 0) == 0


def test_both_streams_are_lost(put):
    put("stdout", _lost("full"))
    put("stderr", _lost("unread"))
    with standard_streams.view("it goes on"):
        print("text", flush=True)
        print("text", file=sys.stderr)


def test_a_disk_that_has_room_again_is_written(put, tmp_path, capsys):
    stream = put("stdout", _lost("full"))
    with standard_streams.view("it goes on"), open(tmp_path / "file", "w") as file:
        print("lost", flush=True)
        os.dup2(file.fileno(), stream.fileno())
        print("kept", flush=True)
    assert (tmp_path / "file").read_text() == "kept\n"
    assert capsys.readouterr().err == f"standard output: {FULL}; it goes on\n"


def test_a_pipe_that_does_not_block_gets_all(put):
    """As a terminal does not, once another program has set it so."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    stream, read = put("stdout", writer), []

    def take():
        with os.fdopen(reader) as file:
            read.append(file.read())

    thread = threading.Thread(target=take)
    starts = threading.Timer(0.3, thread.start)
    starts.start()
    with standard_streams.view("it goes on"):
        print(300_000 * "x", flush=True)
    stream.close()
    starts.join()
    thread.join()
    assert read == [300_000 * "x" + "\n"]


def test_what_only_output_is_made_of_ends_at_once(put):
    put("stdout", _lost("full"))
    with pytest.raises(standard_streams.PrintError, match=f"^standard output: {FULL}$"):
        standard_streams.say("text")
    with standard_streams.raising(lambda: False):
        print("text", flush=True)
    for is_flushed in (True, False):  # the second one fails where the block ends
        with pytest.raises(standard_streams.PrintError), standard_streams.raising(lambda: True):
            print("text", flush=is_flushed)


def test_letters_that_the_encoding_lacks_are_escaped(put, tmp_path):
    put("stdout", os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT), encoding="ascii")
    standard_streams.say("Größe \udcff")
    assert (tmp_path / "file").read_text() == "Gr\\xf6\\xdfe \\udcff\n"


def test_progress_bars_stay_away_without_standard_error(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    monkeypatch.setattr(progress, "tqdm", lambda items, **settings: settings["disable"])
    assert progress.bar("Listing", "folder") is True


def test_the_encoding_is_named_where_it_may_be_the_reason(monkeypatch):
    assert encoding_hint("ü") == ""
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "ascii")
    assert encoding_hint("images") == ""
    for path in ("ü", "\udcc3\udcbc"):
        assert encoding_hint(path) == "; Python takes names of files for ascii here: set PYTHONUTF8=1 if they are UTF-8"


@pytest.mark.slow
def test_a_path_that_cannot_be_encoded(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONUTF8", "0")
    monkeypatch.setenv("LC_ALL", "C")
    images = tmp_path / "größe" / "train"
    (images / "a").mkdir(parents=True)
    (images / "a" / "0.jpg").write_bytes(b"")
    Path(tmp_path, "list.txt").write_text("größe/train/a/0.jpg 0\n", "utf-8")
    Path(tmp_path, "config.yaml").write_text("base: größe.yaml\n", "utf-8")
    for name, *arguments in (
        ("mixprec pack", "--out", "out", "--format", "tfrecord", "--source", "größe/train"),
        ("mixprec pack", "--out", "out", "--format", "tfrecord", "--source", "list.txt"),
        ("mixprec train", "--config", "config.yaml"),
        ("mixprec train", "--config", "digits.yaml", "--set", "data.train=größe/train"),
    ):
        code, printed, errors = _run(tmp_path, name, "", *arguments)
        assert (code, printed, errors.count("\n")) == (2, "", 1)
        assert "; Python takes names of files for ascii here: set PYTHONUTF8=1" in errors

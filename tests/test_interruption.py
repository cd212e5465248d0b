"""Ctrl-C without tracebacks: while a command is imported, when it runs, and when it is ending."""

import signal
import subprocess
import sys

import pytest

from mixprec.app.commands.main import COMMANDS
from mixprec.base import interruption
from tests import ROOT
from tests.cases import first

SCRIPTS = sorted(path.name for path in (ROOT / "scripts").glob("*.py") if path.name != "__init__.py")

# Runs a program that never comes to the end of its imports.
IMPORTS = """
import runpy, sys, time

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "mixprec.app.commands.command_line":
            print("imports", flush=True)
            [time.sleep(0.1) for _ in range(6000)]  # a signal just before a sleep is seen after it

sys.meta_path.insert(0, Slow())
sys.argv = {arguments}
runpy.{run}
"""

# Is interrupted, and takes for ever to end.
ENDS = """
import time
from mixprec.base import interruption

def main():
    try:
        print("runs", flush=True)
        [time.sleep(0.1) for _ in range(6000)]  # a signal just before a sleep is seen after it
    finally:
        print("ends", flush=True)
        {ending}

raise SystemExit(interruption.run(main))
"""

# Ctrl-C comes while a process is started, to both.
STARTS = """
import os, signal, subprocess, sys, threading
from mixprec.base import interruption

CHILD = "import os, signal; os.kill(os.getpid(), signal.SIGINT); print('child')"
threading.Thread(target=threading.Event().wait, daemon=True).start()  # the signal may come to it

def main():
    with interruption.for_parent_only():
        os.kill(os.getpid(), signal.SIGINT)
        subprocess.run([sys.executable, "-c", CHILD], check=True)
        print("parent", flush=True)
    print("goes on", flush=True)

raise SystemExit(interruption.run(main))
"""


def _start(program):
    return subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.mark.parametrize("program", first(1, [*(f"mixprec {name}" for name in COMMANDS), *SCRIPTS]))
def test_ctrl_c_while_a_command_is_imported_is_one_line(program):
    arguments, run = ["mixprec", program.partition(" ")[2]], "run_module('mixprec', run_name='__main__')"
    if program in SCRIPTS:
        arguments = [str(ROOT / "scripts" / program)]
        run = f"run_path({arguments[0]!r}, run_name='__main__')"
    process = _start(IMPORTS.format(arguments=arguments, run=run))
    assert process.stdout.readline() == "imports\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "interrupted\n")


def test_ctrl_c_in_a_script_is_one_line():
    process = _start(ENDS.format(ending=""))
    assert process.stdout.readline() == "runs\n"
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out, errors) == (130, "ends\n", "interrupted\n")


def test_a_second_ctrl_c_ends_a_script_at_once():
    process = _start(ENDS.format(ending="[time.sleep(0.1) for _ in range(6000)]"))
    for line in ("runs\n", "ends\n"):
        assert process.stdout.readline() == line
        process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "interrupted\n")


def test_a_process_is_started_to_the_end_and_sees_no_ctrl_c():
    out, errors = (process := _start(STARTS)).communicate(timeout=60)
    assert (process.returncode, out, errors) == (130, "child\nparent\n", "interrupted\n")


def test_where_ctrl_c_is_ignored_it_stays_so():
    """As under nohup."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        interruption.end_quietly()
        with interruption.raised_once():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_after_a_command_ctrl_c_is_handled_as_before():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interruption.raised_once():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    assert interruption.run(lambda: 3) == 3

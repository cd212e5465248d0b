"""The pool of threads: in forked children, under two threads of Python, at the end of a program, with Ctrl-C."""

import shutil
import subprocess
import sys
import textwrap

import pytest

from mixprec.native.native_library import library
from tests import ROOT

pytestmark = pytest.mark.skipif(library() is None, reason="needs the native library")

_BEGINNING = """
    import multiprocessing, os, signal, sys, threading, time
    import numpy as np
    from mixprec.native.native_library import library
    native = library()
    native.set_threads(4)
    x = (np.arange(1 << 19) % 2000).astype(np.float32)
    expected = x.astype(np.float16)

    def convert(x=x, expected=expected):
        y = np.empty(x.shape, np.float16)
        native.convert(x, y)
        assert (y == expected).all()
"""
_PROGRAMS = {
    "a forked child computes, and so does its parent": """
        convert()
        child = os.fork()
        convert()
        if not child:
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    """,
    "a pool of forked processes, made while another thread computes": """
        convert()
        stop = threading.Event()
        def compute():
            while not stop.is_set():
                convert()
        other = threading.Thread(target=compute)
        other.start()
        for _ in range(3):
            with multiprocessing.get_context("fork").Pool(2) as pool:
                for result in [pool.apply_async(convert) for _ in range(4)]:
                    result.get(60)
        stop.set()
        other.join()
    """,
    "four threads of Python compute": """
        failed = []
        def compute():
            try:
                for _ in range(40):
                    convert()
            except BaseException as error:
                failed.append(error)
        threads = [threading.Thread(target=compute) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert not failed, failed
    """,
    "the program ends while a thread computes": """
        def compute():
            while True:
                convert()
        threading.Thread(target=compute, daemon=True).start()
        time.sleep(0.05)
    """,
    "Ctrl-C reaches Python": """
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            while True:
                convert()
        except KeyboardInterrupt:
            pass
        convert()
    """,
    "threads round as their caller does": """
        import ctypes
        convert()
        one, y = np.ones(1 << 20, np.float32), np.empty(1 << 20, np.float32)
        small = np.full_like(one, 2**-30)
        for rounding, expected in ((0x800, np.nextafter(one, 2 * one)), (0, one)):  # FE_UPWARD, FE_TONEAREST
            ctypes.CDLL(None).fesetround(rounding)
            native.add(one, small, y)
            assert (y == expected).all()
    """,
    "no thread can be created": """
        import resource
        y = np.zeros(x.shape, np.float16)
        before = os.listdir("/proc/self/task")  # OpenBLAS may have threads
        resource.setrlimit(resource.RLIMIT_AS, (1 << 20, resource.RLIM_INFINITY))
        native.convert(x, y)
        threads = os.listdir("/proc/self/task")
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert (y == expected).all()
        assert threads == before, threads
    """,
}


@pytest.mark.slow
@pytest.mark.parametrize("program", list(_PROGRAMS))
def test_programs(program):
    code = textwrap.dedent(_BEGINNING) + textwrap.dedent(_PROGRAMS[program]) + "\nprint('done')\n"
    # From Python 3.12 on a fork beside any threads is warned of.
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_callers_at_once_and_as_many_threads_as_were_set(tmp_path):
    source = ROOT / "mixprec" / "native" / "source"
    command = ["g++", "-std=c++17", "-O1", "-pthread", "-I", source, ROOT / "tests" / "native" / "pool_race.cpp"]
    subprocess.run([*command, source / "pool.cpp", "-o", tmp_path / "pool_race"], check=True)
    done = subprocess.run([tmp_path / "pool_race"], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "ok\n")

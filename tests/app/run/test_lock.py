"""One run at a time in a results folder: two starts, a kill, file systems without locks, and other hosts."""

import errno
import fcntl
import json
import os
import platform
import signal

import pytest

from mixprec.app.run import lock
from tests.app.run.lock_holder import lock_holder


@pytest.fixture
def out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


@pytest.fixture
def holder(out):
    """Another process that holds the lock."""
    with lock_holder() as process:
        yield process


def test_a_second_run_is_refused_with_host_and_process_of_the_first(out, holder):
    with pytest.raises(lock.LockError) as refused, lock.locked("out"):
        pass
    message = str(refused.value)
    assert message.startswith(f"out: in use by another run, process {holder.pid} on {platform.node()} since 20")
    assert message.endswith("; wait for its end, or give another --out")
    assert os.listdir(out) == ["run.lock"], "the holder's file stays"


@pytest.mark.slow
def test_the_lock_is_gone_with_its_holder(out, holder):
    holder.communicate("\n", timeout=60)
    assert holder.returncode == 0
    assert os.listdir(out) == []
    with lock.locked("out"):
        assert json.loads((out / "run.lock").read_text())["pid"] == os.getpid()
    assert os.listdir(out) == []


def test_the_lock_of_a_killed_run_is_taken_over(out, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait(60)
    assert os.listdir(out) == ["run.lock"]
    with lock.locked("out"):
        assert json.loads((out / "run.lock").read_text())["pid"] == os.getpid()
    assert os.listdir(out) == []


def test_a_lock_that_was_removed_while_it_was_opened_is_not_taken_for_one(out, monkeypatch):
    """Its holder ended between the two steps of ours, and another run may have made a new file since."""
    acquire, found = lock._acquire, []

    def late(handle, folder, path, is_new):
        acquire(handle, folder, path, is_new)
        if not found:
            os.remove(path)
        found.append(is_new)

    monkeypatch.setattr(lock, "_acquire", late)
    with lock.locked("out"):
        assert (out / "run.lock").exists()
    assert found == [True, True]


def test_a_second_run_in_this_process_is_refused(out):
    with lock.locked("out"):
        with pytest.raises(lock.LockError, match="in use by another run, in this process"), lock.locked(str(out)):
            pass
        assert (out / "run.lock").exists()


@pytest.mark.parametrize("make", [os.mkdir, lambda path: os.symlink("nowhere", path)])
def test_what_cannot_be_a_lock_is_one_line(out, make):
    make(out / "run.lock")
    with pytest.raises(lock.LockError, match=r"^out"), lock.locked("out"):
        pass


@pytest.mark.slow
def test_a_lock_of_another_user_is_named(out, holder, monkeypatch):
    open_file = os.open

    def refused(path, flags, *mode, **more):
        if str(path).endswith("run.lock") and flags & os.O_RDWR and not flags & os.O_EXCL:
            raise PermissionError(errno.EACCES, "Permission denied")
        return open_file(path, flags, *mode, **more)

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(lock.LockError, match=f"another user's run, process {holder.pid} on "), lock.locked("out"):
        pass


def test_on_a_full_disk_the_lock_holds(out, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with lock.locked("out"):
        assert os.listdir(out) == ["run.lock"]
    assert os.listdir(out) == []


# Where the file system has no locks


@pytest.fixture
def no_locks(monkeypatch):
    def lockf(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", lockf)


def _written(out, **changes):
    (out / "run.lock").write_text(json.dumps(lock._here() | changes))


def test_without_locks_a_run_writes_who_it_is(out, no_locks):
    with lock.locked("out"):
        assert json.loads((out / "run.lock").read_text())["host"] == platform.node()
    assert os.listdir(out) == []


@pytest.mark.parametrize("changes", [{"host": "elsewhere"}, {}], ids=["of another host", "of this host, and alive"])
def test_without_locks_it_says_that_it_cannot_tell(out, no_locks, changes):
    _written(out, **changes)
    with pytest.raises(lock.LockError) as refused, lock.locked("out"):
        pass
    host = changes.get("host", platform.node())
    assert f"perhaps in use by another run, process {os.getpid()} on {host} since " in str(refused.value)
    assert str(refused.value).endswith(
        "this file system has no locks, so that mixprec cannot tell; if that run has ended, remove out/run.lock"
    )
    assert os.listdir(out) == ["run.lock"]


@pytest.mark.parametrize("changes", [{"start": 1}, {"pid": 2**22 + 1}], ids=["another process", "no process"])
def test_without_locks_the_file_of_a_killed_run_of_this_host_is_taken_over(out, no_locks, changes):
    _written(out, **changes)
    with lock.locked("out"):
        assert json.loads((out / "run.lock").read_text())["start"] == lock._here()["start"]


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b'{"host": 1}', b"[" * 4096])
def test_without_locks_a_file_that_says_nothing_is_not_taken_over(out, no_locks, content):
    (out / "run.lock").write_bytes(content)
    words = "another run, which left no description: this file system has no locks"
    with pytest.raises(lock.LockError, match=words), lock.locked("out"):
        pass

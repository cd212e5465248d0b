"""The file that arrays of NumPy are copied to: its space, its end, its errors; and which copies a device has."""

import gc
import os
import pathlib
import resource
import threading
import types
import weakref

import numpy as np
import pytest

from mixprec import backends
from mixprec.backends.copies import copies_for
from mixprec.backends.file_copies import FileCopies
from mixprec.base.messages import OneLineError


def out(copies, array):
    """Copies an array that owns its memory; returns the slot."""
    slot = copies.take(array.nbytes)
    copies.wait(copies.out(array, slot))
    return slot


def test_slots_are_used_again(tmp_path):
    copies = FileCopies(tmp_path)
    slots = [copies.take(size) for size in (5000, 5000, 100)]
    for slot in slots:
        copies.give(slot)
    again = [copies.take(size) for size in (6000, 8192, 1)]
    assert set(again) == set(slots)
    assert [slot.size for slot in again] == [6000, 8192, 1]
    for size in (6000, 8192, 1):
        assert copies.take(size) not in slots
    copies.close()


def test_trim_gives_space_back(tmp_path):
    copies = FileCopies(tmp_path)
    slots = [out(copies, np.full(10**6, number, np.uint8)) for number in range(3)]
    before = os.fstat(copies._fd).st_blocks
    copies.give(slots[0])
    copies.give(slots[2])
    copies.trim()
    assert os.fstat(copies._fd).st_blocks <= before / 2
    assert copies.take(10**6) not in slots
    root, mark = copies.back(slots[1])
    copies.wait(mark)
    assert (root == 1).all()
    copies.close()


def test_no_file_and_no_thread_stay(tmp_path):
    copies = FileCopies(tmp_path)
    out(copies, np.ones(10))
    assert not list(tmp_path.iterdir())
    assert _threads()
    fd = copies._fd
    copies.close()
    copies.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    copies = FileCopies(tmp_path)
    out(copies, np.ones(10))
    number, fd = len(_threads()), copies._fd
    del copies
    gc.collect()
    assert len(_threads()) < number


def _threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("mixprec-copies")]


# --- errors


@pytest.fixture
def small_files():
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("small_files")
def test_a_full_disk(tmp_path):
    """Is an error where the copy is waited for, and where it is wanted back; the array is still there."""
    copies = FileCopies(tmp_path)
    array = np.arange(200_000, dtype=np.uint8)
    slot = copies.take(array.nbytes)
    mark = copies.out(array, slot)
    said = rf"^cannot write to the folder '{tmp_path}', where arrays are offloaded: File too large$"
    for _ in range(2):
        with pytest.raises(OneLineError, match=said):
            copies.wait(mark)
    _, wanted = copies.back(slot)
    with pytest.raises(OneLineError, match=said):
        copies.wait(wanted)
    token = weakref.ref(copies.token_of(array))
    del array
    assert token() is None
    copies.join()
    copies.trim()
    copies.close()


FOLDERS = [
    ("missing", "No such file or directory"),
    ("file", "Not a directory|No such file or directory"),
    ("/proc", ".+"),
    ("a\nb", "No such"),
]


@pytest.mark.parametrize(("name", "said"), FOLDERS)
def test_folders_that_cannot_be_used(tmp_path, name, said):
    (tmp_path / "file").write_text("")
    with pytest.raises(OneLineError, match=rf"^cannot offload to the folder '.*': ({said}).*$") as error:
        FileCopies(tmp_path / name)
    assert "\n" not in str(error.value)


# --- which copies


def test_which_copies(tmp_path, monkeypatch):
    array = np.ones(3)
    for folder in (tmp_path, str(tmp_path)):
        copies = copies_for(array, folder)
        assert type(copies) is FileCopies
        copies.close()
    with pytest.raises(
        OneLineError, match=r'^arrays of NumPy are on the host: offload them to a folder; found "host"$'
    ):
        copies_for(array, "host")
    for to in (None, 3, ""):
        with pytest.raises(OneLineError, match=r'^arrays are offloaded to "host" or to a folder; found '):
            copies_for(array, to)

    class Other(np.ndarray):
        pass

    monkeypatch.setitem(backends._OTHERS, Other, types.SimpleNamespace(copies=lambda to: [to]))
    assert copies_for(array.view(Other), "anything") == ["anything"]


def test_which_copies_for_cupy(monkeypatch):
    device = types.SimpleNamespace(xp=types.SimpleNamespace(__name__="cupy"), device=types.SimpleNamespace(id=1))
    monkeypatch.setattr("chainer.backend.get_device_from_array", lambda array: device)
    monkeypatch.setattr("mixprec.backends.pinned_copies.PinnedCopies", lambda number: [number])
    assert copies_for(None, "host") == [1]
    with pytest.raises(OneLineError, match=r"""^arrays of CuPy are offloaded to "host"; found '/scratch'$"""):
        copies_for(None, pathlib.Path("/scratch"))
    device.xp.__name__ = "chainerx"
    with pytest.raises(TypeError, match=r"^arrays of NumPy and CuPy can be offloaded; found builtins$"):
        copies_for(None, "host")

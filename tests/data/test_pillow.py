"""mixprec.data.loaders.pillow: the tests of the DALI loader, pixels like DALI's, and what can happen to processes.

DALI's tests are run here once more with the other iterator, except those that say nothing about it.
"""

import io
import os
import pickle
import signal
import subprocess
import sys
import tarfile
import tempfile
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mixprec.data.data_error import DataError
from mixprec.data.loaders.pillow import PillowIterator
from mixprec.data.loaders.pillow_worker import random_crop
from mixprec.data.sources.shards import scan_shards
from tests.cases import first
from tests.data import test_dali as test_data_dali
from tests.data.loader_settings import dali_iterator, objects, pillow_iterator  # noqa: F401 (a fixture)
from tests.data.test_dali import COUNT, PLAIN, assert_same, fake_scan, one_pass, take
from tests.data.test_image_check import GOOD

flat, noise = test_data_dali.flat, test_data_dali.noise

_NOT_HERE = {
    "test_images_of_the_batch_are_named_when_none_is_broken",  # about DALI itself
    # About the class that both have in common:
    "test_impossible_argument_is_named",
    "test_snapshot_with_other_settings_is_refused_and_named",
    "test_snapshot_of_other_files_is_refused_and_named",
    "test_snapshot_of_other_images_under_the_same_names_is_refused_and_named",
    "test_snapshot_without_the_iterator_leaves_it_alone_when_not_strict",
    "test_shards_of_validation_are_parts_of_the_whole_in_order",
    "test_two_shards_over_three_epochs",
    "test_finalized_iterator_keeps_its_position",
    "test_a_shard_goes_on_after_any_batch",
}


def _takes_make(test):
    return "make" in test.__code__.co_varnames[: test.__code__.co_argcount]


globals().update(
    (name, test)
    for name, test in vars(test_data_dali).items()
    if name.startswith("test_") and name not in _NOT_HERE and _takes_make(test)
)


@pytest.fixture
def make(pillow_iterator):  # noqa: F811
    return pillow_iterator


@pytest.fixture
def make_dali():
    return dali_iterator


# The same pictures as DALI


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    """Pictures in all the ways in which both loaders read them."""
    root = tmp_path_factory.mktemp("kinds")
    (root / "0").mkdir()
    for name in GOOD.keys() - {"wide.jpg", "tall.png"}:
        (root / "0" / name).write_bytes(GOOD[name])
    return fake_scan(root)


@pytest.mark.parametrize("size", [32, 37])
def test_decoded_pixels_are_those_of_dali(make, make_dali, kinds, size):
    """Colours, directions, and centres at an odd distance from the border: bit for bit."""
    settings = {"train": False, "size": size, **PLAIN}
    x, _ = one_pass(make(kinds, **settings))
    expected, _ = one_pass(make_dali(kinds, **settings))
    for index, (found, wanted) in enumerate(zip(x, expected, strict=True)):
        # Of CMYK Pillow rounds the product of colour and black, which DALI cuts off.
        is_cmyk = kinds.files[index] in ("0/cmyk.jpg", "0/ycck.jpg")
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1 if is_cmyk else 0, err_msg=kinds.name(index))


RESIZED = [(53, 37, 20, 15), (37, 53, 70, 61), (500, 375, 24, 16), (333, 501, 70, 61), (60, 60, 20, 15)]


@pytest.mark.parametrize(("width", "height", "resize", "size"), RESIZED)
def test_resized_pixels_are_those_of_dali(make, make_dali, tmp_path, width, height, resize, size):
    """Also where the longer side has to be rounded. Pillow rounds between its two passes, too: two levels at most."""
    (tmp_path / "0").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "0" / "0.png")
    images = fake_scan(tmp_path)
    settings = {"train": False, "size": size, "resize": resize, **PLAIN}
    x, _ = next(make(images, 1, **settings))
    expected, _ = next(make_dali(images, 1, **settings))
    assert np.abs(x - expected).max() <= 2


def _geometry(iterator, count):
    """Width, height, horizontal and vertical centre of random crops from pictures whose red is x and green is y."""
    found = []
    for _ in range(count):
        x, _ = next(iterator)
        for pixels in x.astype(np.float64):
            horizontal, vertical = pixels[..., 0].mean(axis=0), pixels[..., 1].mean(axis=1)
            scale = len(horizontal) / (len(horizontal) - 1)
            sides = np.ptp(horizontal) * scale, np.ptp(vertical) * scale
            found.append([*sides, horizontal.mean(), vertical.mean()])
    return np.array(found)


@pytest.mark.slow
def test_random_crops_are_distributed_as_those_of_dali(make, make_dali, tmp_path):
    """Means and standard deviations, of 800 crops each, are equal within five standard errors."""
    (tmp_path / "0").mkdir()
    y, x = np.mgrid[:180, :240]
    Image.fromarray(np.stack([x, y, x * 0], -1).astype(np.uint8)).save(tmp_path / "0" / "0.png")
    images = fake_scan(tmp_path)
    found, expected = (
        _geometry(iterator, 800)
        for iterator in (make(images, 1, size=24, **PLAIN), make_dali(images, 1, size=24, **PLAIN))
    )
    extra = [np.log(g[:, 0] / g[:, 1]) for g in (found, expected)], [g[:, 0] * g[:, 1] for g in (found, expected)]
    pairs = [(found[:, column], expected[:, column]) for column in range(4)] + [tuple(pair) for pair in extra]
    for ours, theirs in pairs:
        error = np.sqrt((ours.var() + theirs.var()) / len(ours))
        assert abs(ours.mean() - theirs.mean()) < 5 * error
        fourth = np.mean((theirs - theirs.mean()) ** 4) / theirs.var() ** 2  # the kurtosis: how precise a variance is
        assert abs(ours.var() / theirs.var() - 1) < 5 * np.sqrt(2 * (fourth - 1) / len(ours))


@given(
    st.integers(1, 300),
    st.integers(1, 300),
    st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)).map(sorted),
    st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)).map(sorted),
    st.lists(st.floats(0, 1, exclude_max=True), min_size=40, max_size=40),
)
def test_random_crops_lie_in_the_image_and_in_the_ranges(width, height, area, aspect, attempts):
    left, top, right, bottom = random_crop(width, height, area, aspect, attempts)
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    w, h = right - left, bottom - top
    if min(w, h) > 1:  # both have been rounded, by half a pixel at most
        assert (w - 0.5) * (h - 0.5) <= area[1] * width * height * (1 + 1e-9)
        assert (w - 0.5) / (h + 0.5) <= aspect[1] * (1 + 1e-9)
        assert (w + 0.5) / (h - 0.5) >= aspect[0] * (1 - 1e-9)


def test_a_random_crop_is_at_each_place_equally_often():
    """Of 5x5 in 10x10 there are six places on each axis, the first and the last of them at the border."""
    middles = [(place + 0.5) / 6 for place in range(6)]
    found = [random_crop(10, 10, (0.25, 0.25), (1, 1), [0.5, 0.5, x, y]) for x in middles for y in middles]
    assert found == [(left, top, left + 5, top + 5) for left in range(6) for top in range(6)]


CENTRES = [
    (1000, 100, (0.9, 1), (433, 0, 566, 100)),  # 4:3 and 3:4 are the ends
    (100, 1000, (0.9, 1), (0, 433, 100, 566)),
    (1000, 100, (0.0332, 0.0333), (466, 25, 533, 75)),  # a quarter of it, that being too large
]


@pytest.mark.parametrize(("width", "height", "area", "box"), CENTRES)
def test_without_a_fitting_attempt_the_centre_is_taken(width, height, area, box):
    attempts = [0, 0, 0, 0] * 10 if area[0] > 0.5 else []
    assert random_crop(width, height, area, (3 / 4, 4 / 3), attempts) == box


def test_image_that_is_smaller_than_the_crop_is_named(make, flat):
    with pytest.raises(DataError) as caught:
        next(make(flat, 2, train=False, size=64))
    assert str(caught.value) == f"{flat.paths()[0]}: 24x20 pixels: smaller than the crop of 64x64"


@pytest.mark.slow
@pytest.mark.parametrize(("last_batch", "num_shards"), [("partial", 4), ("drop", 2)])
def test_batches_of_all_shards_are_those_of_one_process(make, noise, last_batch, num_shards):
    """Bit for bit, as crops belong to the image and the epoch."""
    one = take(make(noise, 2 * num_shards, flip=True, last_batch=last_batch), 12)
    shards = [
        take(make(noise, 2, flip=True, last_batch=last_batch, shard=shard, num_shards=num_shards), 12)
        for shard in range(num_shards)
    ]
    for (x, t, *_), *parts in zip(one, *shards, strict=True):
        parts = [(x[t >= 0], t[t >= 0]) for x, t, *_ in parts]
        np.testing.assert_array_equal(np.concatenate([x for x, _ in parts]), x)
        np.testing.assert_array_equal(np.concatenate([t for _, t in parts]), t)


def test_images_of_shards_are_those_of_their_files(make, noise, tmp_path):
    with tarfile.open(tmp_path / "train-00000.tar", "w") as archive:
        for index in range(COUNT):
            key, label = f"{index:05}", str(noise.labels[index]).encode()
            for suffix, content in ((noise.files[index].rpartition(".")[2], noise.read(index)), ("cls", label)):
                header = tarfile.TarInfo(f"{key}.{suffix}")
                header.size = len(content)
                archive.addfile(header, io.BytesIO(content))
    shards = scan_shards(tmp_path)
    assert len(shards) == COUNT
    assert_same(take(make(noise, flip=True), 8), take(make(shards, flip=True), 8))


# Memory


def test_memory_of_batches_that_nobody_has_is_used_again(make, noise):
    iterator = make(noise, prefetch=2)
    kept = take(iterator, 4)
    views = [next(iterator)[0][1:, ::2] for _ in range(5)]  # a view holds the whole batch
    copies = [view.copy() for view in views]
    take(iterator, 9)
    most = len(iterator._workers._slots)
    assert most <= 5 + 2 + 2  # views, batches ahead, the one that is handed out and the one before
    for view, copy in zip(views, copies, strict=True):
        np.testing.assert_array_equal(view, copy)
    del views, view
    take(iterator, 30)
    assert len(iterator._workers._slots) == most
    iterator.reset()
    assert_same(kept, take(iterator, 4))


def test_too_little_memory_is_an_error_in_one_line(make, flat, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(DataError, match=r"^no shared memory for a batch of 0 MiB \(No space left on device\)$"):
        next(make(flat))


def test_without_memfd_batches_lie_in_unnamed_files(make, noise, monkeypatch):
    expected = take(make(noise), 7)

    def named():  # MPI, which other tests run at the same time, has files there
        return {name for name in os.listdir("/dev/shm") if name.startswith(tempfile.gettempprefix())}

    before = named()
    monkeypatch.delattr(os, "memfd_create")
    iterator = make(noise)
    assert_same(expected, take(iterator, 7))
    assert named() == before


# Processes


def _processes(iterator):
    return list(iterator._workers._processes)


@pytest.mark.slow
def test_there_are_no_more_processes_than_a_batch_has_images(make, noise):
    iterator = make(noise, threads=1024)
    assert_same(take(make(noise), 3), take(iterator, 3))
    assert len(_processes(iterator)) == iterator.batch_size < 10


def test_killed_process_is_an_error_in_one_line_and_the_next_batch_is_the_same(make, noise):
    iterator, other = make(noise, threads=2), make(noise)
    before = take(iterator, 2)
    processes = _processes(iterator)
    os.kill(processes[1].pid, signal.SIGKILL)
    with pytest.raises(DataError) as caught:
        before += take(iterator, 9)  # what was made ahead may still come
    assert str(caught.value) == f"the Pillow loader's process {processes[1].pid} has ended by SIGKILL"
    assert [process.returncode for process in processes] == [-9, -9]
    delivered = round(iterator.epoch_detail * COUNT / 4)
    assert_same(take(other, delivered + 5)[delivered:], take(iterator, 5))


def test_process_that_cannot_start_is_an_error_in_one_line(make, noise, monkeypatch, capfd):
    monkeypatch.setattr(sys, "path", ["/nowhere"])
    with pytest.raises(DataError, match=r"^the Pillow loader's process \d+ has ended with exit status 1$"):
        next(make(noise))
    assert "ModuleNotFoundError" in capfd.readouterr().err


def test_signals_to_all_are_for_the_trainer(make, noise):
    """Schedulers send SIGTERM to every process of a job; the trainer writes a snapshot, and goes on until then."""
    iterator, other = make(noise, threads=2), make(noise)
    found = take(iterator, 2)
    for process in _processes(iterator):
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
    assert_same(take(other, 14), found + take(iterator, 12))


@pytest.mark.slow
def test_ctrl_c_at_any_time_loses_and_repeats_nothing(make, noise):
    """Raised by a timer, in a batch or between two of them."""
    expected = take(make(noise), 24)

    def interrupt(*_):
        raise KeyboardInterrupt

    iterator, found, interrupts = make(noise), [], 0
    random = np.random.default_rng(0)
    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        while len(found) < 24:
            found.append(next(iterator))  # starts processes: an interrupted Popen would warn
            while len(found) < 24:
                try:
                    signal.setitimer(signal.ITIMER_REAL, random.choice([0.00003, 0.0003, 0.001, 1]))
                    batch = next(iterator)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    found.append(batch)
                except KeyboardInterrupt:
                    interrupts += 1
                    found += [None] * (iterator._delivered - len(found))  # it was this loop that lost one
                    break
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert interrupts > 3
    assert found.count(None) < 12
    for batch, (expected_x, expected_t, *_) in zip(found, expected, strict=True):
        if batch is not None:
            np.testing.assert_array_equal(batch[0], expected_x)
            np.testing.assert_array_equal(batch[1], expected_t)


@pytest.mark.slow
@pytest.mark.parametrize("gone", ["finalize", "del"])
def test_processes_end_with_the_iterator(noise, gone):
    iterator = PillowIterator(noise, *objects(threads=3))
    x, _ = next(iterator)
    copy, processes = x.copy(), _processes(iterator)
    assert [process.poll() for process in processes] == [None] * 3
    if gone == "finalize":
        iterator.finalize()
    else:
        del iterator
    assert [process.returncode for process in processes] == [-9] * 3
    np.testing.assert_array_equal(x, copy)


SCRIPT = """
# No guard around the main part: processes must not run this again.
import os, pickle, signal, sys
from mixprec.data.loaders.pillow import PillowIterator

with open(sys.argv[1], "rb") as file:
    images = pickle.load(file)
settings = pickle.loads(bytes.fromhex(sys.argv[2]))
iterator = PillowIterator(images, *settings)
next(iterator)
print(*[process.pid for process in iterator._workers._processes], flush=True)
if os.fork() == 0:
    sys.exit()  # a fork ends its own things only
os.wait()
for _ in range(12):
    next(iterator)
print("still there", flush=True)
if sys.argv[3] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
while sys.argv[3] == "interrupted":
    next(iterator)
"""


def _is_there(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("end", first(1, ["killed", "interrupted", "returns"]))
def test_processes_end_with_the_script(noise, tmp_path, end):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "images").write_bytes(pickle.dumps(noise))
    settings = pickle.dumps(objects(threads=2)).hex()
    command = [sys.executable, "-W", "error", tmp_path / "train.py", tmp_path / "images", settings, end]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes, start_new_session=True) as process:
        started, second = process.stdout.readline(), process.stdout.readline()
        if end == "interrupted":
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        try:
            rest, errors = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    pids = list(map(int, started.split()))
    assert len(pids) == 2
    assert (second, rest) == ("still there\n", "")
    if end == "interrupted":
        assert process.returncode == -signal.SIGINT
        assert errors.splitlines()[-1] == "KeyboardInterrupt"
        assert errors.splitlines().count("KeyboardInterrupt") == 1  # no other process says anything
    else:
        assert (process.returncode, errors) == (-9 if end == "killed" else 0, "")
    deadline = time.monotonic() + 30  # they end as soon as they notice
    while any(map(_is_there, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(_is_there, pids))

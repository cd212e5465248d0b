"""mixprec pack: what is written, that a killed run goes on to the same bytes, and --verify."""

import dataclasses
import errno
import functools
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from mixprec.app.commands import pack as pack_command
from mixprec.data.sources import packing as pack_module
from mixprec.data.sources.folders import scan_folders
from mixprec.data.sources.opening import open_images
from mixprec.data.sources.packing import pack, verify
from mixprec.data.sources.shards import FORMATS, scan_shards
from tests import ROOT
from tests.called import call
from tests.data.refusal import refused

COMMAND = (sys.executable, "-m", "mixprec", "pack")
FORM = "tfrecord"  # where the format makes no difference
MIB = 0.02  # a shard; the images have about 1.5 KB

# Runs the command again and again, in forks, and prints their exit codes. Each line that is read is a number n: instead
# of the n-th renaming of a finished temporary file the fork ends itself with SIGKILL.
KILLED = """
import os, signal, sys
from mixprec.app.commands import pack
rename = os.replace
def replace(*names):
    global left
    left -= "/cache/" not in str(names[1])
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    rename(*names)
for line in sys.stdin:
    fork = os.fork()
    if fork == 0:
        os.replace, left = replace, int(line)
        sys.exit(pack.main(sys.argv[1:]))
    print(os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]), flush=True)
"""


@pytest.fixture(autouse=True)
def cache_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """60 images in three classes, and names that are unusual but allowed."""
    folder = tmp_path_factory.mktemp("source") / "images"
    rng = np.random.default_rng(0)
    for number in range(60):
        name = ("cat", "dog", "mäuse und ratten")[number % 3]
        (folder / name).mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (24, 20 + number % 5, 3), dtype=np.uint8)
        file = "same.name.jpg" if number < 3 else f"{number} ü.{'png' if number % 7 == 0 else 'JPEG'}"
        Image.fromarray(pixels).save(folder / name / file)
    return folder


@pytest.fixture
def source(root):
    return scan_folders(root)


@pytest.fixture(params=["tfrecord", "webdataset"])
def form(request):
    return request.param


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def run(*arguments):
    return subprocess.run([*COMMAND, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=120)


run_here = functools.partial(call, pack_command.main)


def test_every_image_is_packed_once_with_its_label_and_class(source, form, tmp_path):
    manifest, made = pack(source, tmp_path / "out", form=form, shard_mib=MIB)
    assert made
    packed = open_images(tmp_path / "out")
    assert packed.format == form
    assert packed.classes == source.classes
    assert packed.named
    pairs = sorted((source.read(index), source.labels[index]) for index in range(60))
    assert sorted((packed.read(index), packed.labels[index]) for index in range(60)) == pairs
    assert len(packed.shards) == len(manifest["shards"]) >= 3
    sizes = [shard["bytes"] for shard in manifest["shards"].values()]
    assert max(sizes) < 1.3 * min(sizes)
    names = [f"images-{number:05}-of-{len(sizes):05}" for number in range(len(sizes))]
    expected = [f"{name}{suffix}" for name in names for suffix in (FORMATS[form].SUFFIX, ".idx")]
    assert sorted(contents(tmp_path / "out")) == sorted([*expected, "manifest.json"])
    for name, shard in manifest["shards"].items():
        assert shard["sha256"] == hashlib.sha256((tmp_path / "out" / name).read_bytes()).hexdigest()


def test_names_of_the_files_are_kept(source, form, tmp_path):
    pack(source, tmp_path / "out", form=form)
    packed = scan_shards(tmp_path / "out")
    by_content = {source.read(index): os.path.basename(source.files[index]) for index in range(60)}
    for index in range(60):
        name, original = packed.name(index).rpartition(": ")[2], by_content[packed.read(index)]
        if form == "tfrecord":
            assert name == original
        else:
            stem = os.path.splitext(original)[0].replace(" ", "_").replace(".", "_").replace("ü", "_")
            assert name == f"{index:09}-{stem}.{'png' if original.endswith('png') else 'jpg'}"


def test_order_is_shuffled_and_follows_from_the_seed_alone(source, tmp_path):
    """Classes are mixed: no shard, of 15 images or more, lacks one."""
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        pack(source, tmp_path / name, form=FORM, shard_mib=MIB, seed=seed)
    a, b, c = (contents(tmp_path / name) for name in "abc")
    assert a == b
    assert all(a[name] != c[name] for name in a)
    packed = scan_shards(tmp_path / "a")
    for shard in range(len(packed.shards)):
        assert len(set(packed.labels[packed.parts == shard].tolist())) == 3


def test_index_beside_a_shard_is_that_of_dalis_tools(source, form, tmp_path):
    pytest.importorskip("nvidia.dali", reason="needs NVIDIA DALI: pip install -e '.[dali]'")
    pack(source, tmp_path / "out", form=form)
    shard = next(path for path in (tmp_path / "out").iterdir() if path.suffix == FORMATS[form].SUFFIX)
    tool = pathlib.Path(sys.executable).parent / {"tfrecord": "tfrecord2idx", "webdataset": "wds2idx"}[form]
    subprocess.run([sys.executable, tool, shard, tmp_path / "theirs"], check=True, capture_output=True)
    assert shard.with_suffix(".idx").read_text() == (tmp_path / "theirs").read_text()


def test_foreign_shards_and_lists_can_be_packed(source, form, tmp_path):
    """From list to TFRecord to WebDataset and so on: labels and images stay."""
    lines = [f"{file} {label}\n" for file, label in zip(source.files, source.labels, strict=True)]
    (tmp_path / "list.txt").write_text("".join(lines))
    images = open_images(tmp_path / "list.txt", root=source.root)
    pack(images, tmp_path / "first", form=form, shard_mib=MIB)
    (tmp_path / "first" / "manifest.json").unlink()
    again = open_images(tmp_path / "first")
    assert not again.named
    pack(again, tmp_path / "second", form="tfrecord" if form == "webdataset" else "webdataset")
    packed = open_images(tmp_path / "second")
    assert not packed.named
    assert packed.classes == ("0", "1", "2")
    pairs = sorted((source.read(index), source.labels[index]) for index in range(60))
    assert sorted((packed.read(index), packed.labels[index]) for index in range(60)) == pairs


# Again, after a kill, after a loss


def test_second_call_writes_nothing(source, tmp_path):
    manifest, _ = pack(source, tmp_path / "out", form=FORM, shard_mib=MIB)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    assert pack(source, tmp_path / "out", form=FORM, shard_mib=MIB) == (manifest, False)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == times


def test_killed_anywhere_and_called_again_gives_the_same_bytes(root, tmp_path):
    """SIGKILL before each kind of renaming: of shard, index, notes, manifest; always in the same folder."""
    arguments = ("--source", root, "--format", "tfrecord", "--shard-mib", 0.04)
    whole = run_here(*arguments, "--out", tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    shards = len(list((tmp_path / "whole").glob("*.tfrecord")))
    assert shards == 2
    out = tmp_path / "killed"
    command = [sys.executable, "-c", KILLED, *map(str, arguments), "--out", str(out)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes, cwd=ROOT) as runs:
        # Notes; a shard, its index and the notes, twice; then the manifest. A call after a kill writes notes first.
        for killed_at, finished in ((1, None), (2, 0), (3, 0), (4, 0), (5, 1), (4, 1), (5, 2)):
            print(killed_at, file=runs.stdin, flush=True)
            assert runs.stdout.readline() == f"-{signal.SIGKILL.value}\n"
            assert not (out / "manifest.json").exists()
            notes = out / "packing.json"
            assert (len(json.loads(notes.read_bytes())["shards"]) if notes.exists() else None) == finished
            if finished is not None:
                assert refused(open_images, out).endswith(
                    "killed: not complete: the same call of mixprec pack goes on with it"
                )
    times = {path.name: path.stat().st_mtime_ns for path in out.glob("*.tfrecord")}
    assert len(times) == 2
    resumed = run(*arguments, "--out", out)
    assert resumed.returncode == 0, resumed.stderr
    assert contents(out) == contents(tmp_path / "whole")
    assert {path.name: path.stat().st_mtime_ns for path in out.glob("*.tfrecord")} == times


def test_call_that_was_killed_when_the_manifest_was_there_already(source, tmp_path):
    pack(source, tmp_path / "out", form=FORM)
    whole = contents(tmp_path / "out")
    (tmp_path / "out" / "packing.json").write_bytes(whole["manifest.json"])
    pack(source, tmp_path / "out", form=FORM)
    assert contents(tmp_path / "out") == whole


@pytest.mark.parametrize("loss", ["missing", "cut", "index"])
def test_lost_shard_is_written_again(source, tmp_path, loss):
    out = tmp_path / "out"
    pack(source, out, form=FORM, shard_mib=MIB)
    whole = contents(out)
    shard = sorted(out.glob(f"*{FORMATS[FORM].SUFFIX}"))[1]
    if loss == "index":
        shard.with_suffix(".idx").unlink()
    elif loss == "missing":
        shard.unlink()
    else:
        shard.write_bytes(shard.read_bytes()[:100])
    if loss != "index":
        message = refused(scan_shards, out)
        assert message.startswith(f"{shard}: " + ("this shard is missing" if loss == "missing" else "has 100 bytes; "))
    assert pack(source, out, form=FORM, shard_mib=MIB)[1]
    assert contents(out) == whole


def test_other_settings_or_another_source_are_refused(source, tmp_path):
    out = tmp_path / "out"
    pack(source, out, form=FORM, shard_mib=MIB)
    before = contents(out)
    say = f"{out}: holds a set with other "
    choose = "; choose another folder"
    assert refused(pack, source, out, form=FORM, shard_mib=MIB, seed=1) == f"{say}seed 0, not 1{choose}"
    assert refused(pack, source, out, form=FORM, shard_mib=1) == f"{say}shard_mib 0.02, not 1{choose}"
    message = refused(pack, source, out, form="webdataset", shard_mib=MIB)
    assert message == f"{say}format {FORM}, not webdataset{choose}"
    resized = dataclasses.replace(source, sizes=np.full(60, 1500))
    message = refused(pack, resized, out, form=FORM, shard_mib=MIB)
    assert message.startswith(f"{say}order and sizes of the images (SHA-256) ")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "cat").symlink_to(os.path.join(source.root, "cat"))
    message = refused(pack, scan_folders(tmp_path / "source"), out, form=FORM, shard_mib=MIB)
    assert message == f"{say}images 60, not 20{choose}"
    assert contents(out) == before


def test_folder_with_other_files_is_left_alone(source, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("mine")
    assert refused(pack, source, tmp_path / "out", form=FORM) == (
        f"{tmp_path}/out: not empty, and not made by mixprec: holds thesis.tex"
    )
    (tmp_path / "out" / "manifest.json").write_text('{"made by": "another program"}')
    assert "not made by mixprec: holds manifest.json" in refused(pack, source, tmp_path / "out", form=FORM)
    assert sorted(contents(tmp_path / "out")) == ["manifest.json", "thesis.tex"]


def test_folder_in_the_source_is_refused(source):
    out = os.path.join(source.root, "packed")
    assert refused(pack, source, out, form=FORM) == f"{out}: lies in the source, {source.root}"
    assert not os.path.exists(out)


IMPOSSIBLE = [
    ({"form": "zip"}, "format 'zip': must be one of tfrecord, webdataset"),
    ({"shard_mib": float("nan")}, "shard_mib nan: must be above 0 and at most 1048576"),
    ({"seed": 2**32}, "seed 4294967296: must be 0 to 2^32 - 1"),
]


@pytest.mark.parametrize(("options", "message"), IMPOSSIBLE)
def test_impossible_arguments(source, tmp_path, options, message):
    assert refused(pack, source, tmp_path / "out", **{"form": "tfrecord", **options}) == message
    assert not (tmp_path / "out").exists()


def test_full_disk_leaves_nothing_half_written_and_the_next_call_goes_on(source, tmp_path, monkeypatch):
    pack(source, tmp_path / "whole", form=FORM, shard_mib=MIB)
    out, written = tmp_path / "out", []

    def samples(*arguments):
        for sample in original(*arguments):
            if len(written) == 30:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written.append(sample)
            yield sample

    original = pack_module._encoded
    with monkeypatch.context() as patch:
        patch.setattr(pack_module, "_encoded", samples)
        message = refused(pack, source, out, form=FORM, shard_mib=MIB)
    assert message == f"{out}: No space left on device; the same call continues the packing"
    assert 1 <= len(list(out.glob(f"*{FORMATS[FORM].SUFFIX}"))) < len(list(out.parent.glob("whole/*.idx")))
    assert not list(out.glob(".*"))
    pack(source, out, form=FORM, shard_mib=MIB)
    assert contents(out) == contents(tmp_path / "whole")


def test_two_at_once_are_refused(source, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    with pack_module._locked(str(out)):
        assert refused(pack, source, out, form=FORM) == f"{out}: another process is packing into this folder"
    assert pack(source, out, form=FORM)[1]


def test_image_that_is_gone_since_the_scan_is_named(source, tmp_path):
    path = pathlib.Path(source.path(7))
    content = path.read_bytes()
    path.unlink()
    try:
        assert refused(pack, source, tmp_path / "out", form=FORM) == f"{source.name(7)}: No such file or directory"
    finally:
        path.write_bytes(content)
    assert not list((tmp_path / "out").glob("images*"))


# --verify


def test_verify_finds_a_flipped_bit(source, tmp_path):
    out = tmp_path / "out"
    manifest, _ = pack(source, out, form=FORM, shard_mib=MIB)
    assert verify(out) == (60, len(manifest["shards"]))
    shard = sorted(out.glob(f"*{FORMATS[FORM].SUFFIX}"))[1]
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    assert refused(verify, out) == f"{shard}: has been changed since it was packed (SHA-256)"


def test_verify_decodes_every_image(source, form, tmp_path, monkeypatch):
    """A source whose images were never checked."""
    original = type(source).read
    monkeypatch.setattr(type(source), "read", lambda self, index: original(self, index)[: 500 if index == 7 else None])
    pack(source, tmp_path / "out", form=form)
    stem = pathlib.Path(source.path(7)).stem
    if form == "webdataset":
        stem = stem.replace(" ", "_").replace("ü", "_")
    assert stem in refused(verify, tmp_path / "out")


def test_verify_of_what_was_not_packed(tmp_path):
    assert refused(verify, tmp_path) == f"{tmp_path}: no manifest.json of mixprec pack"


# The command


def test_command_packs_says_what_it_left_out_and_verifies(root, tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "in" / name).mkdir(parents=True)
        for path in list((root / name).iterdir())[:3]:
            (tmp_path / "in" / name / path.name).write_bytes(path.read_bytes())
    broken = tmp_path / "in" / "dog" / "broken.jpg"
    broken.write_bytes(b"text")
    out = tmp_path / "out"
    arguments = ("--source", tmp_path / "in", "--out", out, "--format", "webdataset")
    stopped = run_here(*arguments)
    assert stopped.returncode == 2
    assert stopped.stderr.startswith(f"error: {broken}: not an image")
    assert stopped.stderr.count("\n") == 1
    assert not out.exists()
    first = run_here(*arguments, "--on-error", "skip")
    assert first.returncode == 0, first.stderr
    said = f"{out}: 6 images of 2 classes in 1 shard, 0 MiB"
    left_out = f"{out}: left out 1 bad image: skipped.txt\n"
    assert first.stdout == f"{said}\n{left_out}"
    assert (out / "skipped.txt").read_text().startswith(f"{broken}: not an image")
    assert run_here(*arguments, "--on-error", "skip").stdout == f"{said}, already there\n{left_out}"
    verified = run_here("--verify", out)
    assert verified.stdout == f"{out}: 6 images in 1 shard are as they were packed\n"
    assert verified.returncode == 0


def test_command_wants_its_arguments(tmp_path):
    missing = run_here("--source", tmp_path)
    assert missing.returncode == 2
    assert "--out, --format must be given, or --verify" in missing.stderr
    both = run_here("--verify", tmp_path, "--out", tmp_path)
    assert both.returncode == 2
    assert "--verify goes with nothing else" in both.stderr


def test_interrupted_command_says_that_the_same_call_goes_on(root, tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(pack_command, "pack", interrupt)
    ended = run_here("--source", root, "--out", tmp_path / "out", "--format", "tfrecord")
    assert ended == (130, "", "interrupted; the same call continues after the finished shards\n")

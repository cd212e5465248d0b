"""Damaged files of arrays: each is read, or refused in one line, by all that read them."""

import io
import itertools
import zipfile

import chainer.links as L
import numpy as np
import pytest

from mixprec.base.messages import OneLineError
from mixprec.data.sources import scan, shard_index
from mixprec.export.weight_files import WeightFile, write
from mixprec.training import snapshots
from tests.damage import compressed, damaged, damaged_fields, odd_archives

STORED, LZMA = zipfile.ZIP_STORED, zipfile.ZIP_LZMA
KINDS = {"stored": STORED, "deflate": zipfile.ZIP_DEFLATED, "bzip2": zipfile.ZIP_BZIP2, "lzma": LZMA}


def layer():
    return L.Linear(1, 3)


def weights(path):
    WeightFile(path).load_into(layer())


READERS = {"weights": weights, "snapshot": snapshots.read}


def tried(reader, path, contents):
    """Reads files one after the other; returns how many could be read."""
    good, said = 0, []
    for content in contents:
        path.write_bytes(content)
        try:
            reader(path)
            good += 1
        except OneLineError as error:
            said.append(str(error))
    assert [each for each in said if not (each.startswith(f"{path}: ") and each.isprintable())] == []
    return good


def arrays():
    return {"W": np.arange(3, dtype=np.float32).reshape(3, 1), "b": np.zeros(3, np.float32)}


@pytest.mark.parametrize(("kind", "reader"), [*zip(KINDS, 2 * [*READERS], strict=True)])
def test_every_compression_is_read_and_its_damages_are_one_line(tmp_path, kind, reader):
    content, path = compressed(arrays(), KINDS[kind]), tmp_path / "a.npz"
    assert tried(READERS[reader], path, [content]) == 1
    assert tried(READERS[reader], path, damaged(content, 1, 200)) < 120
    assert tried(READERS[reader], path, damaged_fields(content)) < 50


@pytest.mark.parametrize("reader", READERS)
def test_odd_members_of_a_whole_archive_are_one_line(tmp_path, reader):
    files = odd_archives("W", arrays()["W"])
    assert tried(READERS[reader], tmp_path / "a.npz", files) < 30


def test_a_damaged_header_is_seen_by_the_checksum(tmp_path):
    """Two bytes make half of the numbers of each array: what is behind them is read, too, and the checksum is there."""
    content = compressed({"W": np.ones((3, 1), np.float64)}, STORED)
    path = tmp_path / "a.npz"
    path.write_bytes(content.replace(b"<f8", b"<f4"))
    with pytest.raises(OneLineError, match=r"a\.npz: damaged, or not an \.npz file \(W: "):
        WeightFile(path)
    with pytest.raises(OneLineError, match=r"a\.npz: corrupt snapshot, or not a snapshot at all \(W: "):
        snapshots.read(path)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth"])
def test_damages_of_pytorchs_files(tmp_path, suffix):
    pytest.importorskip("safetensors" if suffix == ".safetensors" else "torch")
    path = tmp_path / f"a{suffix}"
    write(path, layer())
    content = path.read_bytes()
    tried(weights, path, itertools.chain(damaged(content, 3, 60), damaged_fields(content)))


def test_a_damaged_cache_is_none(tmp_path):
    index = shard_index.ShardIndex.of([("a", 1, 2, 3, "line", None)])
    cache = tmp_path / "cache.npz"
    shard_index._save(cache, "key", index)
    written = {name: np.load(cache)[name] for name in np.load(cache).files}
    assert len(shard_index._load(cache, "key")) == 1
    for kind in KINDS.values():
        content = compressed(written, kind)
        for data in itertools.chain(damaged(content, 4, 25), damaged_fields(content), odd_archives("key", np.ones(2))):
            cache.write_bytes(data)
            found = shard_index._load(cache, "key")
            assert found is None or found.names == ["a"]


def test_a_damaged_list_of_checked_images_is_none(tmp_path):
    cache = tmp_path / "checked.npy"
    good = io.BytesIO()
    np.save(good, np.array([5, 6], np.uint64))
    cache.write_bytes(good.getvalue())
    assert scan._read_cache(cache).tolist() == [5, 6]
    archive = compressed({"a": np.ones(2)}, STORED)
    for data in itertools.chain(damaged(good.getvalue(), 5, 300), [archive, b""]):
        cache.write_bytes(data)
        assert scan._read_cache(cache).dtype == np.uint64

"""Damaged shards and manifests: each folder is read, or refused in one line that names a file."""

import itertools
import json

import pytest

from mixprec.data.data_error import DataError
from mixprec.data.sources.folders import scan_folders
from mixprec.data.sources.packing import pack, verify
from mixprec.data.sources.shards import scan_shards
from tests.app.run import small_images
from tests.damage import damaged

VALUES = (None, 1, -1, 1.5, "x", [], {}, [1], {"a": 1}, True, 10**30, "\ud800", "a\nb", "a\0b", ["\ud800"])


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        small_images.make(root)
        yield scan_folders(root / "val")


@pytest.fixture(params=["webdataset", "tfrecord"])
def folder(request, images, tmp_path):
    pack(images, tmp_path / "packed", form=request.param)
    return tmp_path / "packed"


def tried(folder, function, *args, **keywords):
    """Calls a function, which may refuse the folder in one line."""
    try:
        function(folder, *args, **keywords)
    except DataError as error:
        refusal = str(error)
    else:
        return
    assert refusal.startswith(str(folder))
    assert refusal.isprintable()


def changed(content):
    """Yields copies of a dict without a key, or with another value."""
    for key in content:
        yield {name: value for name, value in content.items() if name != key}
        yield from ({**content, key: value} for value in VALUES)


def manifests(content):
    (name, shard), *_ = content["shards"].items()
    yield from changed(content)
    for other in ({}, *changed(shard)):
        yield {**content, "shards": {name: other}}
    for other in ("x", f"../{name}", "", "a\0b", "\ud800"):
        yield {**content, "shards": {other: shard}}


@pytest.mark.slow
def test_a_manifest_with_anything_in_it(folder, images):
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    for other in manifests(content):
        path.write_text(json.dumps(other))
        tried(folder, scan_shards)
        tried(folder, verify)
    for key in ("named", "classes", "shards"):
        path.write_text(json.dumps({**content, key: None}))
        with pytest.raises(DataError, match=r"manifest\.json: damaged: not as mixprec pack writes it$"):
            scan_shards(folder)
    path.write_text(json.dumps({**content, "classes": ["a"]}))
    with pytest.raises(DataError, match=r"packed: label 2, but manifest\.json has 1 classes$"):
        scan_shards(folder)


def test_packing_goes_on_with_no_damaged_manifest(folder, images):
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    for other in itertools.islice(manifests(content), 0, None, 7):
        path.write_text(json.dumps(other))
        tried(folder, lambda out: pack(images, out, form=content["format"]))


def test_damaged_shards(folder):
    (folder / "manifest.json").unlink()
    (shard,) = [path for path in folder.iterdir() if path.suffix in (".tar", ".tfrecord")]
    for content in damaged(shard.read_bytes(), 60, 60):
        shard.write_bytes(content)
        tried(folder, scan_shards)
        tried(folder, scan_shards, on_error="skip")

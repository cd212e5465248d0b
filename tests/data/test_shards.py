"""TFRecord and WebDataset shards: what is read from them, what is refused, that DALI reads the same, and the cache."""

import io
import os
import struct
import subprocess
import tarfile

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, message_factory
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mixprec.data.data_error import DataError
from mixprec.data.sources import crc32c, shards, tfrecord, webdataset
from mixprec.data.sources.shard_folder import shard_format
from mixprec.data.sources.shards import FORMATS, scan_shards
from tests.cases import tries
from tests.data.refusal import refused


def encoded(seed, kind="JPEG"):
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (20 + seed % 7, 24, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


IMAGES = tuple(encoded(seed, "PNG" if seed % 3 == 0 else "JPEG") for seed in range(8))
LABELS = (2, 0, 1, 0, 2, 1, 1, 0)


@pytest.fixture
def decoded(monkeypatch):
    """What was decoded, in any order."""
    seen = []
    original = shards.image_problem
    monkeypatch.setattr(shards, "image_problem", lambda file: seen.append(file.getvalue()) or original(file))
    return seen


@pytest.fixture(params=["tfrecord", "webdataset"])
def form(request):
    return request.param


@pytest.fixture
def folder(tmp_path, form):
    """Two shards of five and three samples."""
    write(tmp_path / f"train-00000-of-00002{FORMATS[form].SUFFIX}", form, range(5))
    write(tmp_path / f"train-00001-of-00002{FORMATS[form].SUFFIX}", form, range(5, 8))
    return tmp_path


def write(path, form, numbers, images=IMAGES, labels=LABELS):
    records = [FORMATS[form].encode(number, images[number], labels[number], f"pic_{number}.x")[0] for number in numbers]
    path.write_bytes(b"".join((*records, FORMATS[form].END)))


def first_shard(folder):
    return min(path for path in folder.iterdir() if path.name != "manifest.json")


# CRC-32C and the framing of TFRecord


# The native library's, where there is one, and NumPy's.
each_crc32c = pytest.mark.parametrize("crc32c", [crc32c.crc32c, crc32c.by_numpy])


@each_crc32c
def test_crc32c_of_published_data(crc32c):
    """RFC 3720, appendix B.4, and the check value of the CRC catalogue."""
    words = (0x01C00000, 0, 0, 0, 0x14000000, 0x400, 0x14, 0x18, 0x28000000, 0, 0x02000000, 0)
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"") == 0
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert crc32c(bytes(reversed(range(32)))) == 0x113FDB5C
    assert crc32c(struct.pack(">12I", *words)) == 0xD9963A56


@given(st.binary(max_size=5000), st.integers(0, 9))
@settings(max_examples=tries(50), deadline=None)
def test_crc32c_is_the_same_by_numpy_wherever_data_begin(data, start):
    assert crc32c.crc32c(memoryview(data)[start:]) == crc32c.by_numpy(data[start:])


@each_crc32c
def test_crc32c_of_any_length_is_the_remainder_bit_by_bit(crc32c):
    data = np.random.default_rng(0).integers(0, 256, 5000, dtype=np.uint8).tobytes()
    register, expected = 0xFFFFFFFF, []
    for byte in data:
        expected.append(register ^ 0xFFFFFFFF)
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    lengths = [*range(40), *range(1000, 1050), 2047, 2048, 2049, 3071, 3072, 3073, 4999]
    assert [crc32c(data[:length]) for length in lengths] == [expected[length] for length in lengths]


def test_masked_crc_is_that_of_tensorflows_event_files():
    """They all begin with a record of 24 bytes: 18 00 00 00 00 00 00 00 a3 7f 4b 22."""
    assert struct.pack("<I", tfrecord.masked_crc(struct.pack("<Q", 24))) == bytes.fromhex("a37f4b22")


# tf.train.Example, against Google's protobuf


def example_class():
    """tensorflow/core/example/{example,feature}.proto, built at run time."""
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="t", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto

    def message(name, *fields):
        new = file.message_type.add(name=name)
        for number, (field, kind, label, of) in enumerate(fields, 1):
            new.field.add(name=field, number=number, type=kind, label=label, type_name=of)
        return new

    one, many = kinds.LABEL_OPTIONAL, kinds.LABEL_REPEATED
    message("BytesList", ("value", kinds.TYPE_BYTES, many, None))
    message("FloatList", ("value", kinds.TYPE_FLOAT, many, None))
    message("Int64List", ("value", kinds.TYPE_INT64, many, None))
    lists = (("bytes_list", "BytesList"), ("float_list", "FloatList"), ("int64_list", "Int64List"))
    feature = message("Feature", *((name, kinds.TYPE_MESSAGE, one, f".t.{of}") for name, of in lists))
    feature.oneof_decl.add(name="kind")
    for field in feature.field:
        field.oneof_index = 0
    features = message("Features", ("feature", kinds.TYPE_MESSAGE, many, ".t.Features.FeatureEntry"))
    entry = features.nested_type.add(name="FeatureEntry")
    entry.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=one)
    entry.field.add(name="value", number=2, type=kinds.TYPE_MESSAGE, label=one, type_name=".t.Feature")
    entry.options.map_entry = True
    message("Example", ("features", kinds.TYPE_MESSAGE, one, ".t.Features"))
    return message_factory.GetMessages([file])["t.Example"]  # with the protobuf of the extra legacy, too


Example = example_class()


def framed(data):
    length = struct.pack("<Q", len(data))
    checks = [struct.pack("<I", tfrecord.masked_crc(part)) for part in (length, data)]
    return b"".join((length, checks[0], data, checks[1]))


@settings(max_examples=tries(50), deadline=None)
@given(
    image=st.binary(max_size=3000),
    label=st.integers(0, 10**6 - 1),
    name=st.text(st.characters(exclude_categories=["Cs"])),
)
def test_protobuf_reads_what_is_written(image, label, name):
    record, line = tfrecord.encode(0, image, label, name)
    assert record == framed(record[12:-4])
    assert line(7) == f"7 {len(record)}"
    example = Example.FromString(record[12:-4])
    feature = example.features.feature
    assert set(feature) == {"image/encoded", "image/class/label", "image/filename"}
    assert list(feature["image/encoded"].bytes_list.value) == [image]
    assert list(feature["image/class/label"].int64_list.value) == [label]
    assert list(feature["image/filename"].bytes_list.value) == [name.encode()]


@settings(max_examples=tries(50), deadline=None)
@given(
    image=st.binary(min_size=1, max_size=3000),
    label=st.integers(-(2**63), 2**63 - 1),
    others=st.dictionaries(
        st.text(max_size=20), st.one_of(st.binary(max_size=600), st.lists(st.integers(-5, 300)), st.floats(width=32))
    ),
)
def test_what_protobuf_writes_is_read(tmp_path_factory, image, label, others):
    """In the order that protobuf chooses, with other features of all kinds between."""
    example = Example()
    feature = example.features.feature
    for key, value in others.items():
        if isinstance(value, bytes):
            feature[key].bytes_list.value.append(value)
        elif isinstance(value, list):
            feature[key].int64_list.value.extend(value)
        else:
            feature[key].float_list.value.append(value)
    feature["image/encoded"].bytes_list.value[:] = [image]
    feature["image/class/label"].int64_list.value[:] = [label]
    path = tmp_path_factory.mktemp("one") / "x.tfrecord"
    path.write_bytes(framed(example.SerializeToString()))
    index = tfrecord.read_index(str(path))
    assert index.names == ["record 0"]
    offset = index.offsets[0]
    assert path.read_bytes()[offset : offset + index.sizes[0]] == image
    if 0 <= label < 10**6:
        assert (index.labels[0], index.problems) == (label, [""])
    else:
        assert index.problems == [f"label {label}: must be 0 to 999999"]


@settings(max_examples=tries(50), deadline=None)
@given(data=st.binary(max_size=200))
def test_any_other_message_is_a_bad_sample(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("one") / "x.tfrecord"
    path.write_bytes(framed(data))
    index = tfrecord.read_index(str(path))
    assert index.problems[0]


# What is found


def test_samples_are_found_in_order(folder, form):
    images = scan_shards(folder)
    assert shard_format(folder) == images.format == form
    assert [images.read(index) for index in range(len(images))] == list(IMAGES)
    assert images.labels.dtype == np.int32
    assert images.labels.tolist() == list(LABELS)
    assert images.classes == ("0", "1", "2")
    assert not images.named
    assert images.root == str(folder)
    assert images.skipped == ()
    first = str(first_shard(folder))
    name = {"tfrecord": "pic_3.x", "webdataset": "000000003-pic_3.png"}[form]
    assert images.name(3) == f"{first}: {name}"
    assert [os.path.basename(shard) for shard in images.shards] == sorted(os.listdir(folder))
    assert images.parts.tolist() == [0] * 5 + [1] * 3


def test_archive_of_gnu_tar_with_other_files_folders_and_hidden_ones(tmp_path):
    """Extensions count from the first dot, in either case; samples may lie in folders."""
    parts = tmp_path / "parts"
    for name, content in (
        {"cat/a.JPEG": IMAGES[1], "cat/a.cls": b" 12\n", "cat/a.json": b"{}", "cat/a.seg.png": IMAGES[0]}
        | {"dog.x/b.cls": b"0", "dog.x/b.png": IMAGES[0], f"dog.x/{'c' * 120}.jpg": IMAGES[2]}
        | {f"dog.x/{'c' * 120}.cls": b"3", "dog.x/.hidden.jpg": b"no image"}
    ).items():
        (parts / name).parent.mkdir(parents=True, exist_ok=True)
        (parts / name).write_bytes(content)
    (tmp_path / "s").mkdir()
    subprocess.run(["tar", "cf", tmp_path / "s" / "x.tar", "--sort=name", "-C", parts, "."], check=True)
    images = scan_shards(tmp_path / "s")
    assert images.labels.tolist() == [12, 0, 3]
    assert [images.read(index) for index in range(3)] == [IMAGES[1], IMAGES[0], IMAGES[2]]
    assert len(images.classes) == 13
    assert images.name(0).endswith("/x.tar: ./cat/a.JPEG")


def test_odd_names(tmp_path):
    """With spaces, colons, zeros, newlines, and bytes that are no UTF-8: two scans, the second from the cache."""
    names = ["a b: c", "a\nb", "ü", "\udcff"]
    members = [(f"{n}.{suffix}", part) for n in names for suffix, part in (("jpg", IMAGES[1]), ("cls", b"0"))]
    (tmp_path / "w").mkdir()
    tar_of(tmp_path / "w" / "x.tar", members)
    shown = ["a b: c.jpg", "a\\nb.jpg", "ü.jpg", "\\udcff.jpg"]
    (tmp_path / "t").mkdir()
    record = tfrecord.encode(0, IMAGES[1], 0, "a\0b\nc.jpg")[0]
    (tmp_path / "t" / "x.tfrecord").write_bytes(record * 2)
    for _ in range(2):
        images = scan_shards(tmp_path / "w")
        assert [images.name(index) for index in range(4)] == [f"{tmp_path}/w/x.tar: {name}" for name in shown]
        assert read_by_dali(images) == ([IMAGES[1]] * 4, [0] * 4)
        assert all(line.count(" ") == 7 and ":" not in line for line in images.lines)
        assert scan_shards(tmp_path / "t").names == ("a\\x00b\\nc.jpg",) * 2


def test_path_that_is_not_utf8(tmp_path):
    path = os.path.join(os.fsencode(tmp_path), b"\xff.tar")
    with open(path, "wb") as file:
        file.write(webdataset.encode(0, IMAGES[0], 0, "a")[0] + webdataset.END)
    assert refused(scan_shards, tmp_path) == f"{tmp_path}/\\udcff.tar: the path is not valid UTF-8"


def read_by_dali(images):
    """Lists of bytes and of labels, in the order in which DALI's reader delivers them."""
    dali = pytest.importorskip("nvidia.dali", reason="needs NVIDIA DALI: pip install -e '.[dali]'")
    fn, types = dali.fn, dali.tfrecord

    @dali.pipeline_def(batch_size=len(images), num_threads=1, device_id=None)
    def graph():
        if images.format == "webdataset":
            return tuple(
                fn.readers.webdataset(
                    paths=list(images.shards),
                    index_paths=images.index_files(),
                    ext=["jpg", "cls"],
                    missing_component_behavior="error",
                )
            )
        found = fn.readers.tfrecord(
            path=list(images.shards),
            index_path=images.index_files(),
            features={
                tfrecord.IMAGE: types.FixedLenFeature((), types.string, ""),
                tfrecord.LABEL: types.FixedLenFeature([1], types.int64, -1),
            },
        )
        return found[tfrecord.IMAGE], found[tfrecord.LABEL]

    pipeline = graph()
    pipeline.build()
    contents, labels = ([np.asarray(part.at(index)) for index in range(len(images))] for part in pipeline.run())
    texts = images.format == "webdataset"
    return [content.tobytes() for content in contents], [
        int(label.tobytes()) if texts else int(label[0]) for label in labels
    ]


def test_dali_reads_the_same(folder):
    assert read_by_dali(scan_shards(folder)) == (list(IMAGES), list(LABELS))


def test_dali_does_not_read_what_is_skipped(folder, form):
    """Also if nothing is left of a shard."""
    images = list(IMAGES)
    images[2] = images[3][:100]
    images[5] = images[6] = images[7] = b"text"
    labels = (2, 0, 1, 1, 2, 1, 1, 0)
    for shard, numbers in zip(sorted(folder.iterdir()), (range(5), range(5, 8)), strict=True):
        write(shard, form, numbers, images, labels)
    found = scan_shards(folder, "skip")
    kept = [0, 1, 3, 4]
    assert found.labels.tolist() == [labels[number] for number in kept]
    assert [found.read(index) for index in range(4)] == [IMAGES[number] for number in kept]
    assert found.shards == (str(first_shard(folder)),)
    assert read_by_dali(found) == ([IMAGES[number] for number in kept], [labels[number] for number in kept])
    names, reasons = zip(*found.skipped, strict=True)
    assert len(names) == 4
    assert names[0].startswith(f"{first_shard(folder)}: ")
    assert "pic_2" in names[0]
    assert "not an image in a known format" in reasons[1]


def test_fingerprint_knows_labels_and_names_and_not_where_they_lie(folder, form, tmp_path_factory):
    before = scan_shards(folder).fingerprint
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for shard in folder.iterdir():
        (elsewhere / shard.name).write_bytes(shard.read_bytes())
    assert scan_shards(elsewhere).fingerprint == before
    write(first_shard(folder), form, range(5), labels=(2, 0, 1, 0, 1))
    assert scan_shards(folder).fingerprint != before


# The cache


def test_images_are_decoded_once_and_anew_in_a_shard_that_has_changed(folder, form, decoded, monkeypatch):
    first = scan_shards(folder)
    assert sorted(decoded) == sorted(IMAGES)
    decoded.clear()
    monkeypatch.setattr(FORMATS[form], "read_index", lambda path: pytest.fail(f"{path} is listed again"))
    monkeypatch.setattr(FORMATS[form].read_index, "__module__", FORMATS[form].__name__)
    again = scan_shards(folder)
    assert decoded == []
    assert again.fingerprint == first.fingerprint
    assert again.lines == first.lines
    assert again.sizes.tolist() == first.sizes.tolist()
    monkeypatch.undo()


def test_shard_that_has_changed_is_read_again(folder, form, decoded):
    scan_shards(folder)
    decoded.clear()
    other = (encoded(100), *IMAGES[1:])
    write(first_shard(folder), form, range(4), other)
    images = scan_shards(folder)
    assert len(images) == 7
    assert images.read(0) == other[0]


def test_damaged_cache_is_made_anew(folder, cache_home):
    before = scan_shards(folder).fingerprint
    for path in (cache_home / "mixprec").glob("*.npz"):
        path.write_bytes(path.read_bytes()[:50])
    assert scan_shards(folder).fingerprint == before


def test_index_that_cannot_be_written_says_where(folder, cache_home, monkeypatch):
    images = scan_shards(folder)
    (cache_home / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_home / "file"))
    with pytest.raises(DataError, match=r"file/mixprec/dali-\w+\.idx: DALI's index .* XDG_CACHE_HOME"):
        images.index_files()


# What is refused: whole shards


@pytest.mark.parametrize(("cut", "on_error"), [(600, "stop"), (1100, "skip"), (2000, "skip")])
def test_truncated_shard_is_an_error_in_either_mode(folder, cut, on_error):
    """1,100 bytes are more than what ends an archive; of that, one zero block is enough."""
    shard = first_shard(folder)
    shard.write_bytes(shard.read_bytes()[:-cut])
    message = refused(scan_shards, folder, on_error)
    assert message.startswith(f"{shard}: ")
    assert "truncated" in message or "not an intact, uncompressed tar archive" in message


def test_archive_cut_between_two_samples_is_not_taken_for_a_short_one(tmp_path):
    (tmp_path / "x.tar").write_bytes(webdataset.encode(0, IMAGES[0], 1, "a")[0])
    assert refused(scan_shards, tmp_path).endswith("x.tar: truncated: the blocks that end an archive are missing")


def test_damage_between_two_samples_is_not_taken_for_the_end(folder, form):
    shard = first_shard(folder)
    start = len(FORMATS[form].encode(0, IMAGES[0], LABELS[0], "pic_0.x")[0])
    content = bytearray(shard.read_bytes())
    content[start + 1] ^= 255
    shard.write_bytes(content)
    assert refused(scan_shards, folder, "skip").startswith(f"{shard}: damaged at byte {start}: ")


NO_SHARDS = [(b"", "the file is empty"), (b"x" * 600, "not an "), (b"\x1f\x8b\x08" + bytes(range(200)), "not an ")]


@pytest.mark.parametrize(("content", "reason"), NO_SHARDS)
def test_shard_that_is_none(folder, content, reason):
    shard = first_shard(folder)
    shard.write_bytes(content)
    assert refused(scan_shards, folder).startswith(f"{shard}: {reason}")


def test_archive_of_nothing(tmp_path):
    (tmp_path / "x.tar").write_bytes(bytes(1024))
    for _ in range(2):  # the second time from the cache
        assert refused(scan_shards, tmp_path) == f"{tmp_path}/x.tar: no samples in this shard"


def test_missing_shard_is_named(folder):
    shard = first_shard(folder)
    shard.unlink()
    assert refused(scan_shards, folder) == f"{shard}: this shard is missing"


def test_missing_shards_are_counted_from_one_if_the_others_are(tmp_path):
    write(tmp_path / "train-2-of-3.tar", "webdataset", range(2))
    write(tmp_path / "train-3-of-3.tar", "webdataset", range(2, 4))
    assert refused(scan_shards, tmp_path) == f"{tmp_path}/train-1-of-3.tar: this shard is missing"
    write(tmp_path / "train-1-of-3.tar", "webdataset", range(4, 8))
    assert len(scan_shards(tmp_path)) == 8


def test_names_of_tensorflow_without_a_suffix(tmp_path):
    write(tmp_path / "train-00000-of-00001", "tfrecord", range(8))
    (tmp_path / "labels.txt").write_text("mine")
    assert len(scan_shards(tmp_path)) == 8


def test_two_sets_in_a_folder(folder, form):
    suffix = FORMATS[form].SUFFIX
    write(folder / f"validation-00000-of-00001{suffix}", form, range(2))
    assert refused(scan_shards, folder) == (
        f"{folder}: holds two sets of shards, train-*-of-00002{suffix} and validation-*-of-00001{suffix}; must be one"
    )


def test_two_formats_in_a_folder(folder):
    write(folder / "x.tar", "webdataset", range(2))
    write(folder / "x.tfrecord", "tfrecord", range(2))
    assert refused(scan_shards, folder) == f"{folder}: holds both TFRecord and WebDataset shards; must be one of them"


def test_folder_without_shards_and_no_folder(tmp_path):
    assert (
        refused(scan_shards, tmp_path)
        == f"{tmp_path}: no shards; must be *.tar, *.tfrecord, or like train-00003-of-00010"
    )
    assert refused(scan_shards, tmp_path / "no") == (
        f"{tmp_path}/no: cannot be read as a folder of shards (No such file or directory)"
    )


# What is refused: samples


def tar_of(path, members):
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


BAD_SAMPLES = [
    ([("a.jpg", IMAGES[1])], "a sample of 1 image and 0 labels (.cls); must be one of each"),
    (
        [("a.jpg", IMAGES[1]), ("a.png", IMAGES[0]), ("a.cls", b"1")],
        "a sample of 2 images and 1 label (.cls); must be one of each",
    ),
    ([("a.jpg", IMAGES[1]), ("a.cls", b"cat")], "its label (.cls) is 'cat'; must be a number"),
    ([("a.jpg", IMAGES[1]), ("a.cls", b"-1")], "label -1: must be 0 to 999999"),
    ([("a.jpg", IMAGES[1]), ("a.cls", b"9" * 32)], f"label {'9' * 32}: must be 0 to 999999"),
    ([("a.jpg", b""), ("a.cls", b"2")], "the file is empty"),
    ([("a.jpg", b"text"), ("a.cls", b"2")], "not an image in a known format"),
]


@pytest.mark.parametrize(("members", "reason"), BAD_SAMPLES)
def test_bad_sample_of_an_archive(tmp_path, members, reason):
    tar_of(tmp_path / "x.tar", [*members, ("b.jpg", IMAGES[2]), ("b.cls", b"2")])
    message = refused(scan_shards, tmp_path)
    assert message.startswith(f"{tmp_path}/x.tar: a")
    assert f": {reason}" in message
    images = scan_shards(tmp_path, "skip")
    assert images.labels.tolist() == [2]
    assert images.read(0) == IMAGES[2]
    assert read_by_dali(images) == ([IMAGES[2]], [2])
    assert len(images.skipped) == 1


BAD_RECORDS = [
    ({"image/class/label": [1]}, "no feature image/encoded"),
    ({"image/encoded": [IMAGES[1]]}, "no feature image/class/label"),
    ({"image/encoded": [IMAGES[1], IMAGES[2]], "image/class/label": [1]}, "holds 2 images"),
    ({"image/encoded": [IMAGES[1]], "image/class/label": [1, 2]}, "2 labels"),
    ({"image/encoded": [IMAGES[1]], "image/class/label": [b"1"]}, "no feature image/class/label"),
    ({"image/encoded": [IMAGES[1][:50]], "image/class/label": [2]}, "Truncated File Read"),
]


@pytest.mark.parametrize(("features", "reason"), BAD_RECORDS)
def test_bad_record(tmp_path, features, reason):
    example = Example()
    for key, values in features.items():
        feature = example.features.feature[key]
        (feature.bytes_list if isinstance(values[0], bytes) else feature.int64_list).value.extend(values)
    good = tfrecord.encode(0, IMAGES[2], 2, "good.jpg")[0]
    (tmp_path / "x.tfrecord").write_bytes(framed(example.SerializeToString()) + good)
    assert refused(scan_shards, tmp_path).startswith(f"{tmp_path}/x.tfrecord: record 0: {reason}")
    images = scan_shards(tmp_path, "skip")
    assert read_by_dali(images) == ([IMAGES[2]], [2])


def test_flipped_bit_in_a_record_is_noticed_by_its_checksum(tmp_path):
    """In the pixels of an uncompressed image, which decodes all the same."""
    image = encoded(1, "BMP")
    record = bytearray(tfrecord.encode(0, image, 1, "a.bmp")[0])
    record[-100] ^= 1
    (tmp_path / "x.tfrecord").write_bytes(record)
    expected = f"{tmp_path}/x.tfrecord: a.bmp: wrong checksum of the record; no image is left"
    assert refused(scan_shards, tmp_path) == expected


def test_image_whose_shard_is_gone_or_cut_after_the_scan_is_named(folder):
    images = scan_shards(folder)
    shard = first_shard(folder)
    shard.write_bytes(shard.read_bytes()[:100])
    with pytest.raises(DataError, match=r"pic_4\.\w+: the shard has been truncated since it was scanned$"):
        images.read(4)
    shard.unlink()
    with pytest.raises(DataError, match=r"pic_4\.\w+: No such file or directory$"):
        images.read(4)

"""Files of weights: each kind holds the same bits, and bad ones are one line that names the file."""

import pickle
import sys
import zipfile

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import serializers

from mixprec.export import WeightsError, torchvision
from mixprec.export.matching import contents
from mixprec.export.weight_files import SUFFIXES, WeightFile, write

REASON = "torch is not installed: it comes with Python 3.11 only"
TORCHS = [suffix for suffix in SUFFIXES if suffix != ".npz"]


def net(classes=3):
    """Linear layers with a normalization, whose numbers are other ones in each call."""
    network = chainer.Sequential(L.Linear(4, 2), L.BatchNormalization(2), F.relu, L.Linear(2, classes))
    for name, array in contents(network).items():
        if not name.endswith("N"):
            array[...] = np.random.standard_normal(array.shape)
    network[1].N = np.random.randint(100)
    return network


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def needs(suffix):
    if suffix in (".pt", ".pth"):
        pytest.importorskip("torch", reason=REASON)


def assert_equal(network, expected):
    for name, array in contents(expected).items():
        assert contents(network)[name].tobytes() == array.tobytes(), name


def refusal(path, network=None):
    with pytest.raises(WeightsError) as caught:
        WeightFile(path).load_into(network or net())
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{path}: ")


# What a file holds


@pytest.mark.parametrize("suffix", [*SUFFIXES, ".NPZ"])
def test_a_round_trip_is_exact_and_the_same_weights_are_the_same_bytes(work, suffix):
    needs(suffix)
    network, other = net(), net()
    write(f"a{suffix}", network)
    loaded = WeightFile(f"a{suffix}").load_into(other)
    assert loaded == (9, [], None)
    assert_equal(other, network)
    write(f"b{suffix}", other)
    assert (work / f"a{suffix}").read_bytes() == (work / f"b{suffix}").read_bytes()
    assert sorted(path.name for path in work.iterdir()) == [f"a{suffix}", f"b{suffix}"]


def test_npz_is_chainers_own_file(work):
    network, other = net(), net()
    write("a.npz", L.Classifier(network))
    serializers.load_npz("a.npz", other)
    assert_equal(other, network)
    serializers.save_npz("b.npz", L.Classifier(network))  # names begin with predictor/, and it is compressed
    third = net()
    WeightFile("b.npz").load_into(third)
    assert_equal(third, network)


@pytest.mark.parametrize("suffix", TORCHS)
def test_pytorch_reads_what_is_written(work, suffix):
    torch = pytest.importorskip("torch", reason=REASON)
    network = net()
    write(f"a{suffix}", network)
    if suffix == ".safetensors":
        from safetensors.torch import load_file

        state = load_file(f"a{suffix}")
    else:
        state = torch.load(f"a{suffix}", weights_only=True)
    module = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.BatchNorm1d(2), torch.nn.ReLU(), torch.nn.Linear(2, 3))
    module.load_state_dict(state)
    for name, array in torchvision(network).items():
        np.testing.assert_array_equal(module.state_dict()[name].numpy(), array)


@pytest.mark.parametrize(("suffix", "dtype"), [(".safetensors", "bfloat16"), (".pt", "float16"), (".pt", "float64")])
def test_files_in_other_dtypes_become_float32(work, suffix, dtype):
    torch = pytest.importorskip("torch", reason=REASON)
    from safetensors.torch import save_file

    network = net()
    state = {k: torch.from_numpy(array) for k, array in torchvision(net()).items()}
    state = {k: v.to(getattr(torch, dtype)) if v.is_floating_point() else v for k, v in state.items()}
    save = save_file if suffix == ".safetensors" else torch.save
    save(state, f"a{suffix}")
    WeightFile(f"a{suffix}").load_into(network)
    for name, array in torchvision(network).items():
        np.testing.assert_array_equal(array, state[name].float().numpy())
        assert array.dtype == np.float32 or name.endswith("tracked")


def test_a_snapshot_of_a_run_holds_weights(work):
    network, other = net(), net()
    arrays = {f"updater/model:main/predictor/{name}": array for name, array in contents(network).items()}
    np.savez("snapshot_best.npz", **arrays, **{"updater/iteration": np.array(3), "none": np.array(None)})
    WeightFile("snapshot_best.npz").load_into(other)
    assert_equal(other, network)


def test_of_a_snapshot_with_averaged_weights_the_average_is_read(work):
    """Validation used it, and it becomes ``model.npz``; what is not averaged is read of the weights."""
    network, average, other = net(), net(), net()
    (name, *_), rest = contents(network), contents(network)
    weights = {f"updater/model:main/predictor/{key}": array for key, array in rest.items()}
    averaged = {f"extensions/average/average/predictor/{name}": contents(average)[name] + 1}
    np.savez("snapshot.npz", **averaged, **weights)
    WeightFile("snapshot.npz").load_into(other)
    found = contents(other)
    np.testing.assert_array_equal(found.pop(name), contents(average)[name] + 1)
    assert all(np.array_equal(found[key], rest[key]) for key in found)


# The head


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_head_stays_where_the_number_of_classes_is_another_one(work, suffix):
    needs(suffix)
    network, other = net(classes=5), net(classes=3)
    write(f"a{suffix}", network)
    before = other[3].W.array.copy(), other[3].b.array.copy()
    assert "(5" in refusal(f"a{suffix}", other)
    assert WeightFile(f"a{suffix}").load_into(other, classes=3) == (7, ["/1"], 5)
    np.testing.assert_array_equal(other[3].W.array, before[0])
    np.testing.assert_array_equal(other[3].b.array, before[1])
    np.testing.assert_array_equal(other[0].W.array, network[0].W.array)
    assert other[1].N == network[1].N


def test_a_head_without_a_shape_is_known_by_its_bias(work):
    write("a.npz", chainer.Sequential(L.Linear(4, 2), L.Linear(2, 5)))
    other = chainer.Sequential(L.Linear(None, 2), L.Linear(None, 3))
    assert WeightFile("a.npz").load_into(other, classes=3) == (2, ["/1"], 5)
    assert (other[0].W.shape, other[1].W.array, other[1].b.shape) == ((2, 4), None, (3,))


NO_HEADS = [
    lambda arrays: arrays.update({"1/W": np.zeros((5, 2), np.float32)}),  # and not its bias
    lambda arrays: arrays.update({"1/W": np.zeros((5, 3), np.float32), "1/b": np.zeros(5, np.float32)}),
    lambda arrays: arrays.update({"1/W": np.zeros((5, 2), np.float32), "1/b": np.zeros(6, np.float32)}),
    lambda arrays: arrays.update({"1/W": np.zeros((), np.float32), "1/b": np.zeros((), np.float32)}),
    lambda arrays: arrays.update({"0/W": np.zeros((3, 4), np.float32), "0/b": np.zeros(3, np.float32)}),
]


@pytest.mark.parametrize("change", NO_HEADS)
def test_other_shapes_are_no_head(work, change):
    arrays = contents(net())
    change(arrays)
    np.savez("a.npz", **arrays)
    network = net()
    before = {name: np.array(array) for name, array in contents(network).items()}
    with pytest.raises(WeightsError, match=r"^a\.npz: [01]/[Wb] has shape \(.*\); Sequential here has \(.*\)$"):
        WeightFile("a.npz").load_into(network, classes=3)
    assert all(np.array_equal(before[name], array) for name, array in contents(network).items())


# Bad files


@pytest.mark.parametrize("path", ["a.onnx", "", "a\nb.pth.tar"])
def test_another_suffix(work, path):
    words = "the suffix determines the format of weights; allowed: .npz, .safetensors, .pt, .pth"
    for action in (WeightFile, lambda path: write(path, net())):
        with pytest.raises(WeightsError) as caught:
            action(path)
        assert str(caught.value).endswith(f": {words}")
    assert list(work.iterdir()) == []


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_that_is_none(work, suffix):
    path = f"a{suffix}"
    assert refusal(path) == "no such file"
    (work / path).mkdir()
    assert refusal(path) == "Is a directory"
    with pytest.raises(WeightsError, match=r"cannot be written \(Is a directory\)$"):
        write(path, net())
    (work / path).rmdir()
    (work / path).symlink_to("/dev/zero")
    assert refusal(path) == "a device, pipe or socket, not a file"


def test_a_name_that_no_file_can_have():
    for path in ("a\0.npz", "\ud800.npz"):
        for action in (WeightFile, lambda path: write(path, net())):
            with pytest.raises(WeightsError, match=r"^\S+\.npz: cannot be the name of a file$"):
                action(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("content", [b"", b"\0", b"no weights\n" * 9, b"PK\x03\x04", pickle.dumps({"a": 1})])
def test_a_file_of_something_else(work, suffix, content):
    needs(suffix)
    (work / f"a{suffix}").write_bytes(content)
    assert refusal(f"a{suffix}").startswith(("damaged, or ", "has no tensors by name"))


def test_nothing_is_unpickled(work):
    class Bomb:
        def __reduce__(self):
            return (open, (str(work / "gone off"), "w"))

    np.savez("a.npz", **contents(net()) | {"0/W": np.array(Bomb(), object)})
    assert refusal("a.npz") == "0/W holds Python objects, which are not read; wanted: arrays of numbers"
    (work / "b.npz").write_bytes(pickle.dumps(Bomb()))
    assert refusal("b.npz").startswith("damaged, or not an .npz file")
    torch = pytest.importorskip("torch", reason=REASON)
    torch.save({"weight": torch.ones(2), "bomb": Bomb()}, "a.pt")
    wanted = "wanted: a file of torch.save(module.state_dict(), FILE)"
    assert refusal("a.pt") == f"damaged, or holds more than tensors, which is not read; {wanted}"
    torch.save(torch.nn.Linear(2, 3), "b.pt")
    assert refusal("b.pt").startswith("damaged, or holds more than tensors")
    assert not (work / "gone off").exists()


def test_members_of_an_npz_file_that_are_no_arrays(work):
    np.savez("a.npz", **contents(net()))
    with zipfile.ZipFile("a.npz", "a") as archive:
        archive.writestr("readme.txt", "hello")
    assert refusal("a.npz").startswith("damaged, or not an .npz file (readme.txt: ValueError: ")
    np.save("b.npy", np.ones(3))
    (work / "b.npy").rename("b.npz")
    assert refusal("b.npz").startswith("damaged, or not an .npz file")


def test_tensors_of_safetensors_in_eight_bits(work):
    torch = pytest.importorskip("torch", reason=REASON)
    from safetensors.torch import save_file

    state = {name: torch.from_numpy(array) for name, array in torchvision(net()).items()}
    save_file(state | {"3.bias": state["3.bias"].to(torch.float8_e4m3fn)}, "a.safetensors")
    assert refusal("a.safetensors") == "3.bias is F8_E4M3; wanted: one of F64, F32, F16, BF16, I64, I32"


PACKAGES = [
    (".safetensors", "safetensors", "export", "", ""),
    (".pt", "torch", "torch", "save it as .safetensors where torch is", "write .safetensors, which"),
]


@pytest.mark.parametrize(("suffix", "package", "extra", "to_read", "to_write"), PACKAGES)
def test_a_package_that_is_missing(work, monkeypatch, suffix, package, extra, to_read, to_write):
    (work / f"a{suffix}").write_bytes(b"content")
    monkeypatch.setitem(sys.modules, package, None)
    words = f'needs the package {package}: pip install -e ".[{extra}]"'
    said = refusal(f"a{suffix}")
    assert said.startswith(words)
    assert to_read in said
    with pytest.raises(WeightsError) as caught:
        write(f"b{suffix}", net())
    assert str(caught.value).startswith(f"b{suffix}: {words}")
    assert to_write in str(caught.value)
    assert [path.name for path in work.iterdir()] == [f"a{suffix}"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_full_disk_leaves_the_file_that_was_there(work, monkeypatch, suffix):
    needs(suffix)
    (work / f"a{suffix}").write_bytes(b"before")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(WeightsError, match=r"cannot be written \(No space left on device\)$"):
        write(f"a{suffix}", net())
    assert [(path.name, path.read_bytes()) for path in work.iterdir()] == [(f"a{suffix}", b"before")]

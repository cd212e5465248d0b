"""mixprec.export.int8: the ranges that are chosen, what is reported and what is refused."""

import logging
import tempfile
import weakref

import numpy as np
import pytest

pytest.importorskip("onnx", reason="needs onnx and onnxruntime: pip install -e '.[export]'")
pytest.importorskip("onnxruntime", reason="needs onnx and onnxruntime: pip install -e '.[export]'")

import onnx
from onnx import TensorProto

from mixprec.base.messages import OneLineError
from mixprec.export import int8
from mixprec.export.int8 import has_vnni, quantize
from mixprec.export.sessions import session
from tests.export.graphs import GraphMaker, images, residual, shape_of, unet
from tests.export.quantized import NETWORKS, run

FLAGS = [("sse avx2 avx512_vnni", True), ("avx2 avx_vnni", True), ("avx2 avx512f", False), ("avx_vnni_int", False)]


@pytest.mark.parametrize(("flags", "there"), FLAGS)
def test_vnni_is_read_from_the_flags(tmp_path, flags, there):
    path = tmp_path / "cpuinfo"
    path.write_text(f"processor\t: 0\nmodel name\t: avx_vnni\nflags\t\t: fpu {flags}\n\nprocessor\t: 1\n")
    assert has_vnni(path) is there
    assert has_vnni(tmp_path / "none") is False


def test_method_is_chosen_on_images_that_are_held_out():
    """The one value that MinMax keeps makes all others of the layer coarse."""
    make = GraphMaker(3, 16, 16)
    network = make.model((make.conv("images", 16, kernel=1), 4))
    random = np.random.RandomState(0)
    plain = [random.normal(size=(4, 3, 16, 16)).astype(np.float32) for _ in range(4)]
    _, report = quantize(network, plain, target="tensorrt")
    outlier = [array.copy() for array in plain]
    outlier[0][0, 0, 0, 0] = 40
    _, clipped = quantize(network, outlier, target="tensorrt")
    assert clipped["method"] == "entropy"
    assert clipped["errors"]["entropy"] < 0.1 * clipped["errors"]["minmax"]
    # In the images that are held out it is the largest value that counts.
    held_out = [array.copy() for array in plain]
    for array in held_out:
        array[:, 0, 0, 0] = 40
    _, kept = quantize(network, held_out, target="tensorrt")
    assert kept["method"] == "minmax"
    assert report["errors"].keys() == clipped["errors"].keys() == {"minmax", "percentile", "entropy"}


def test_error_is_that_of_the_graph_in_units_of_the_variance(only_minmax):
    """It is not that of this processor's integer kernels, which differs by 2e-4 of it."""
    network, batches = unet(), images(16, 3, 8, 8)
    model, report = quantize(network, batches, target="tensorrt")
    held_out = np.concatenate([each[3:] for each in batches])
    pairs = zip(run(model, held_out, qdq_in_float=True), run(network, held_out), strict=True)
    errors = [np.square(found - wanted).mean() / wanted.var() for found, wanted in pairs]
    assert len(errors) == 2
    assert report["errors"]["minmax"] == pytest.approx(np.mean(errors), rel=1e-5)


def test_outputs_that_are_constant_have_an_error():
    make = GraphMaker(4)
    zeros = np.zeros((4, 4), np.float32)
    outputs = [make.linear("images", 4, weights=zeros, bias=np.full(4, value, np.float32)) for value in (0, 1)]
    _, report = quantize(make.model(*[(name, 2) for name in outputs]), images(8, 4), target="tensorrt")
    assert set(report["errors"].values()) == {0}
    assert report["method"] == "minmax"  # the first of those that are equal


def test_value_too_large_for_float16_is_refused():
    make = GraphMaker(4)
    x = make.linear(make.linear("images", 4), 4)
    network = make.model((make.linear(x, 4, weights=np.full((4, 4), 1e6, np.float32)), 2))
    with pytest.raises(OneLineError, match=r"^gemm2_out is up to [^ ]*e\+0., too large for layers in float16$"):
        quantize(network, images(8, 4), target="tensorrt", half_ends=True)
    quantize(network, images(8, 4), target="tensorrt")


def test_results_are_the_same_and_the_model_stays():
    network = residual()
    before = network.SerializeToString(deterministic=True)
    models = [quantize(network, images(8, 3, 8, 8), target="cpu")[0] for _ in range(2)]
    assert network.SerializeToString(deterministic=True) == before
    assert len({model.SerializeToString(deterministic=True) for model in models}) == 1


def test_batches_do_not_matter():
    network, array = residual(), np.concatenate(images(12, 3, 8, 8))
    pieces = [[array], [array[:5], array[5:]], lambda: (image[None] for image in array)]
    assert (
        len({quantize(network, each, target="tensorrt")[0].SerializeToString(deterministic=True) for each in pieces})
        == 1
    )


def test_nothing_is_printed_logged_or_left_behind(capfd, caplog, tmp_path, monkeypatch, only_minmax):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    handlers = list(logging.getLogger().handlers)
    for name in NETWORKS:
        network = NETWORKS[name]()
        with caplog.at_level(logging.WARNING):
            quantize(network, images(8, *shape_of(network)), target="cpu")
    assert capfd.readouterr() == ("", "")
    assert not caplog.records
    assert logging.getLogger().handlers == handlers
    assert not list(tmp_path.iterdir())


def test_memory_does_not_grow_with_the_number_of_images(monkeypatch):
    """Counts the arrays that are alive: images, and what layers compute from them."""
    alive, most = [0], [0]

    def counted(array):
        alive[0] += 1
        most[0] = max(most[0], alive[0])
        weakref.finalize(array, lambda: alive.__setitem__(0, alive[0] - 1))
        return array

    class Counting:
        def __init__(self, *arguments, **how):
            self.computer = session(*arguments, **how)

        def run(self, *arguments):
            return [counted(array) for array in self.computer.run(*arguments)]

    monkeypatch.setattr("mixprec.export.calibration.session", Counting)
    monkeypatch.setattr(int8, "session", Counting)
    peaks = []
    for number in (8, 64):
        most[0] = 0
        quantize(
            residual(),
            lambda number=number: (counted(image[None]) for image in np.ones((number, 3, 8, 8), "f")),
            target="tensorrt",
        )
        peaks.append(most[0])
    assert alive[0] == 0
    assert peaks[0] == peaks[1]


def test_progress_is_told(only_minmax):
    told = []
    quantize(residual(), images(8, 3, 8, 8), target="cpu", progress=lambda *each: told.append(each))
    calibration = [1, 2, 3, 4, 5, 6]
    wanted = [("ranges", calibration), ("histograms", calibration), ("held out", [1, 2])]
    assert told == [(step, done) for step, counts in wanted for done in counts]


def test_what_cannot_be_quantized_is_refused():
    network = residual()
    with pytest.raises(ValueError, match=r"^target must be one of tensorrt, cpu, not 'gpu'$"):
        quantize(network, images(8, 3, 8, 8), target="gpu")
    with pytest.raises(OneLineError, match=r"^calibration: found 4 images, needs at least 8$"):
        quantize(network, images(4, 3, 8, 8), target="cpu")
    make = GraphMaker(4)
    with pytest.raises(OneLineError, match="no layer"):
        quantize(make.model((make.relu("images"), 2)), images(8, 4), target="cpu")
    with pytest.raises(OneLineError, match="no layer"):
        quantize(make.model((make.linear("images", 4), 2)), images(8, 4), target="cpu", half_ends=True)
    two = residual()
    two.graph.input.append(onnx.helper.make_tensor_value_info("more", TensorProto.FLOAT, ["N"]))
    with pytest.raises(ValueError, match="must have one input, not 2"):
        quantize(two, images(8, 3, 8, 8), target="cpu")


def test_activation_that_is_not_finite_is_named():
    make = GraphMaker(4)
    huge = make.node("Mul", "images", make.constant(np.float32(1e38), "factor"))
    network = make.model((make.linear(make.node("Mul", huge, "factor"), 4), 2))
    with pytest.raises(OneLineError, match="calibration: a value of mul1_out is not finite"):
        quantize(network, images(8, 4), target="cpu")


def test_nodes_without_names_get_some(only_minmax):
    network = residual()
    for node in network.graph.node:
        node.name = "Conv_0" if node.op_type == "Conv" else ""
    model, report = quantize(network, images(8, 3, 8, 8), target="cpu")
    assert report["quantized_layers"] == 7
    names = [node.name for node in model.graph.node]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(("target", "suffix"), [("cpu", "_scale"), ("tensorrt", "_zero_point")])
def test_constants_whose_names_the_quantizer_would_take(target, suffix, only_minmax):
    make = GraphMaker(16)
    x = make.linear("images", 16)
    factors = make.constant(np.linspace(1, 2, 16, dtype=np.float32), f"{x}{suffix}")
    y = make.node("Add", x, factors)
    z = make.linear(make.node("Mul", x, factors), 16)
    network = make.model((make.linear(make.node("Add", z, y), 4), 2))
    model, report = quantize(network, images(8, 16), target=target)
    assert report["errors"]["minmax"] < 0.01
    names = [tensor.name for tensor in model.graph.initializer]
    assert len(set(names)) == len(names)

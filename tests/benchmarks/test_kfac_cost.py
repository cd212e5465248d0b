"""What K-FAC costs on paper: the work of each layer, worked out by hand, and the time that follows from it."""

import json

import chainer
import chainer.functions as F
import chainer.links as L
import pytest

from benchmarks import step_commands
from benchmarks.roofline import h200_model, kfac_estimate, kfac_seconds, kfac_tables, kfac_work, step_estimate
from benchmarks.roofline.kfac_work import ARRAYS, FACTORIZATION, MOMENTS, PRODUCTS, Work
from benchmarks.roofline.network_layers import layers
from models import MODELS
from scripts import benchmark
from tests.benchmarks import roofline_small as small

pytestmark = pytest.mark.slow

GAP, COPY = 1.1e-6, 0.84 * 4.3e12
FP32 = 67e12


@pytest.fixture(scope="module")
def blocks():
    """conv1: 3x3, from 3 to 8 channels; bn1; conv2: 1x1, from 8 to 8; bn2; fc: from 8 to 1000 with a bias."""
    return {block.name: block for block in kfac_work.blocks(layers(small.Small, small.SIZE))}


# Work


def test_factors_of_a_small_network(blocks):
    rows, batch = 2 * 16, 2  # positions of two images of 4x4
    a1, a2, a3, g, g3 = (4 * order**2 for order in (27, 8, 9, 8, 1000))
    assert {name: kfac_work.factor(block, batch, 2) for name, block in blocks.items()} == {
        "conv1": [
            Work("patches", ARRAYS, 1, small.X, cached=2 * rows * 27),
            Work("A", MOMENTS, 1, a1, 2 * rows * 27**2, cached=2 * rows * 27),
            Work("G", MOMENTS, 1, small.A + g, 2 * rows * 8**2),
        ],
        "bn1": [Work("scale moments", ARRAYS, 1, 2 * small.A + 4 * 3 * 8)],
        "conv2": [
            Work("A", MOMENTS, 1, small.A + a2, 2 * rows * 8**2),
            Work("G", MOMENTS, 1, small.A + g, 2 * rows * 8**2),
        ],
        "bn2": [Work("scale moments", ARRAYS, 1, 2 * small.A + 4 * 3 * 8)],
        "fc": [
            Work("A", MOMENTS, 1, small.P + a3, 2 * batch * 9**2),
            Work("G", MOMENTS, 1, small.Y + g3, 2 * batch * 1000**2),
        ],
    }
    numbers = 27**2 + 8**2 + 3 * 8 + 8**2 + 8**2 + 3 * 8 + 9**2 + 1000**2
    assert kfac_work.average(blocks.values()) == [Work("averages", ARRAYS, 1, 3 * 4 * numbers)]


def test_inverses_and_products_of_a_small_network(blocks):
    def inverted(order):
        matrix = 4 * order**2
        return [
            Work("shift", ARRAYS, 1, 2 * matrix),
            Work("potrf", FACTORIZATION, 1, 2 * matrix, order**3 / 3, order=order),
            Work("potri", FACTORIZATION, 1, 2 * matrix, order**3 * 2 / 3, order=order),
            Work("mirror", ARRAYS, 1, matrix),
        ]

    assert kfac_work.inverse(blocks["fc"]) == inverted(9) + inverted(1000)
    assert kfac_work.inverse(blocks["bn1"]) == [Work("2x2 inverses", ARRAYS, 1, 2 * 4 * 3 * 8)]
    assert kfac_work.precondition(blocks["fc"], 2) == [
        Work("cast", ARRAYS, 1, 2 * 8000 + 4 * 1000 + 4 * 9000),
        Work("product with A", PRODUCTS, 1, 4 * (9 * 9 + 2 * 9000), 2 * 1000 * 9**2),
        Work("product with G", PRODUCTS, 1, 4 * (1000 * 1000 + 2 * 9000), 2 * 1000**2 * 9),
    ]
    # three moments of each channel, two gradients that are read and two that are written
    assert kfac_work.precondition(blocks["bn1"], 2) == [Work("2x2 products", ARRAYS, 1, 4 * (3 + 4) * 8)]


class Odd(chainer.Chain):
    """Groups and a bias with a stride; a link that is applied twice; what K-FAC leaves alone."""

    def __init__(self, classes):
        super().__init__()
        with self.init_scope():
            self.grouped = L.Convolution2D(3, 12, 3, stride=2, pad=1, groups=3)
            self.strided = L.Convolution2D(12, 12, 1, stride=2, nobias=True)
            self.shared, self.scale = L.Convolution2D(12, 12, 1, nobias=True), L.Scale(W_shape=(12,))
            self.bn = L.BatchNormalization(12)
            self.rows, self.fc = L.Linear(4, 5), L.Linear(12 * 5, classes)

    def forward(self, x):
        h = self.shared(self.shared(self.strided(self.grouped(x))))
        h = self.rows(F.reshape(self.scale(self.bn(h)), (-1, 12, 4)), n_batch_axes=2)
        return self.fc(h)


def test_layers_of_an_odd_network():
    """Images are 8x8, 4x4 behind ``grouped`` and 2x2 behind ``strided``."""
    found = {block.name: block for block in kfac_work.blocks(layers(Odd, 8))}
    kinds = "convolution", "batch_normalization", "linear"
    assert {block.name: (kinds.index(block.kind), block.groups, block.d, block.k) for block in found.values()} == {
        "grouped": (0, 3, 9 + 1, 4),
        "strided": (0, 1, 12, 12),
        "shared": (0, 1, 12, 12),
        "bn": (1, 1, 0, 12),
        "rows": (2, 1, 4 + 1, 5),
        "fc": (2, 1, 60 + 1, 1000),
    }
    assert {name: (block.positions, block.read, block.makes_patches) for name, block in found.items()} == {
        "grouped": (16, 3 * 64, True),
        "strided": (4, 12 * 4, True),  # only the pixels that it sees
        "shared": (2 * 4, 2 * 12 * 4, False),
        "bn": (4, 12 * 4, False),
        "rows": (12, 12 * 4, False),
        "fc": (1, 60, False),
    }
    patches, a, g = kfac_work.factor(found["grouped"], 5, 2)
    assert patches.cached == 2 * 5 * 16 * 27  # without the ones for the bias
    assert (a.flops, g.flops) == (2 * 5 * 16 * 3 * 10**2, 2 * 5 * 16 * 3 * 4**2)
    assert a.bytes == 4 * 3 * 10**2
    calls = [(work.launches, work.order, work.flops) for work in kfac_work.inverse(found["grouped"]) if work.order]
    assert calls == [(3, n, 3 * n**3 * part / 3) for n in (10, 4) for part in (1, 2)]
    assert [work.flops for work in kfac_work.precondition(found["grouped"], 2)] == [
        0,
        3 * 2 * 4 * 10**2,
        3 * 2 * 4**2 * 10,
    ]


@pytest.mark.parametrize(("batch", "parts"), [(1, 1), (9, 1), (10, 2), (256, 28)])
def test_patches_fit_into_the_cache(batch, parts):
    """3x3 filters on 64 channels of 56x56 pixels: 3.6 MB an image."""
    block = kfac_work.Block("", "convolution", 1, 576, 64, 56**2, 64 * 56**2, False, True)
    patches, a, _ = kfac_work.factor(block, batch, 2)
    assert patches.launches == a.launches == parts
    assert (parts - 1) * 2**25 < patches.cached <= parts * 2**25
    assert a.bytes == 4 * 576**2  # which stays beside them


def test_a_matrix_that_the_cache_does_not_hold():
    """3x3 filters on 512 channels of 7x7 pixels: A has 85 MB, and 256 images have four parts."""
    block = kfac_work.Block("", "convolution", 1, 4608, 512, 7**2, 512 * 7**2, False, True)
    patches, a, _ = kfac_work.factor(block, 256, 2)
    assert patches.launches == a.launches == 4
    assert a.bytes == 4 * 2 * 4 * 4608**2


def test_operations_of_potrf_and_potri():
    """They are counted in the loops of both: multiplications and additions."""
    n = 400
    potrf = sum(2 * column * (n - column) for column in range(n))  # each row of it loses a product of so many
    inverse = sum(2 * length * (length + 1) // 2 for length in range(n))  # of a triangle: by columns, solved forward
    square = sum(2 * (row + 1) * (n - row) for row in range(n))  # of it: half of a product, from where both begin
    block = kfac_work.Block("", "linear", 1, n, 0, 1, n, False, False)
    flops = {work.name: work.flops for work in kfac_work.inverse(block) if work.order == n}
    assert flops["potrf"] == pytest.approx(potrf, rel=0.01)
    assert flops["potri"] == pytest.approx(inverse + square, rel=0.01)


def test_sums_of_resnet50():
    """They are those of an earlier study of the project: 62 and 15 M numbers in triangles, 450 G in cubes."""
    all_blocks = kfac_work.blocks(layers(MODELS["resnet50"], 64))
    found = [block for block in all_blocks if block.d]
    assert len(found) == 54
    a, g = zip(*(block.factors for block in found), strict=True)
    assert sum(order * (order + 1) // 2 for order in a) == pytest.approx(62e6, rel=0.01)
    assert sum(order * (order + 1) // 2 for order in g) == pytest.approx(15e6, rel=0.03)
    assert sum(order**3 for order in (*a, *g)) == pytest.approx(450e9, rel=0.01)
    flops = sum(work.flops for block in found for work in kfac_work.inverse(block))
    assert flops == pytest.approx(sum(order**3 for order in (*a, *g)))
    assert max(*a, *g) == 3 * 3 * 512
    scales = sum(2 * block.k for block in all_blocks if not block.d)
    assert sum(block.gradient for block in found) + scales == 25_557_032


# Time


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (Work("", ARRAYS, 1, 10**9), 10**9 / COPY + GAP),
        (Work("", ARRAYS, 3, 100), 3 * (2e-6 + GAP)),
        (Work("", ARRAYS, 1, 1, cached=10**9), 10**9 / 6.5e12 + GAP),
        (Work("", MOMENTS, 2, 1, 10**12), 10**12 / (0.5 * 790e12) + 2 * GAP),
        (Work("", MOMENTS, 2, 1, 1), 2 * (5e-6 + GAP)),
        (Work("", PRODUCTS, 1, 1, 10**12), 10**12 / (0.4 * FP32) + GAP),
        (Work("", FACTORIZATION, 3, 1, 10**9, order=100), 300 * 0.7e-6 + 10**9 / (0.2 * FP32) + 3 * GAP),
    ],
)
def test_seconds(work, expected):
    assert kfac_seconds.seconds(work, 256) == pytest.approx(expected)


def test_only_products_of_float32_depend_on_tf32_and_only_those_of_16_bits_on_the_batch():
    works = {kind: Work("", kind, 1, 1, 10**12, order=10) for kind in (ARRAYS, MOMENTS, PRODUCTS, FACTORIZATION)}
    single, rounded, little = (
        {kind: kfac_seconds.seconds(work, *given) for kind, work in works.items()}
        for given in ((256,), (256, "tf32"), (32,))
    )
    assert [kind for kind in works if single[kind] != rounded[kind]] == [PRODUCTS]
    assert rounded[PRODUCTS] == pytest.approx(10**12 / (0.4 * 494.5e12) + GAP)
    assert [kind for kind in works if single[kind] != little[kind]] == [MOMENTS]


@pytest.mark.parametrize(
    ("name", "order", "published", "error"),
    [
        ("potrf", 128, 109e-6, 0.20),
        ("potrf", 512, 376e-6, 0.05),
        ("potrf", 2048, 1954e-6, 0.16),
        ("potrf", 4096, 3.8e-3, 0.21),
        ("potri", 128, 71e-6, 0.28),
        ("potri", 256, 142e-6, 0.28),
    ],
)
def test_factorizations_are_near_what_is_published(name, order, published, error):
    part = 1 if name == "potrf" else 2
    found = kfac_seconds.seconds(Work(name, FACTORIZATION, 1, 0, part * order**3 / 3, order=order), 1)
    assert found == pytest.approx(published, rel=error)


# Steps and tables


def test_steps_add_up(blocks):
    found = kfac_estimate.steps(blocks.values(), 2, "float16", 3.0)
    assert [(each.batch, each.precision, each.plain) for each in found] == [(2, "float32", 3.0), (2, "tf32", 3.0)]
    for each in found:
        works = [work for block in blocks.values() for work in kfac_work.precondition(block, 2)]
        assert each.between == pytest.approx(3 + 1e3 * sum(kfac_seconds.seconds(w, 2, each.precision) for w in works))
        works = [work for block in blocks.values() for work in kfac_work.factor(block, 2, 2)]
        factor = sum(kfac_seconds.seconds(work, 2) for work in [*works, *kfac_work.average(blocks.values())]) * 1e3
        works = [work for block in blocks.values() for work in kfac_work.inverse(block)]
        inverse = sum(kfac_seconds.seconds(work, 2) for work in works) * 1e3
        assert each.factor == pytest.approx(each.between + factor)
        assert each.inverse == pytest.approx(each.factor + inverse)
        assert each.means == {
            1: pytest.approx(each.inverse),
            10: pytest.approx(each.between + factor / 10 + inverse / 10),
            100: pytest.approx(each.between + factor / 10 + inverse / 100),
        }


def test_memory(blocks):
    found = kfac_estimate.memory(blocks.values(), 2, "bfloat16")
    numbers = 27**2 + 8**2 + 3 * 8 + 8**2 + 8**2 + 3 * 8 + 9**2 + 1000**2
    assert found == kfac_estimate.Memory(*[4 * numbers] * 4, patches=2 * 2 * 16 * 27)


def test_layers_of_one_shape_are_one_row():
    found = kfac_tables.report(MODELS["resnet18"], size=32, batches=[4, 2], dtype="float16", plain=[1.0, 2.0])
    alone = kfac_work.blocks(layers(MODELS["resnet18"], 32))
    assert found.batch == 4
    assert sum(row.layers for row in found.rows[:-1]) == len(alone) == 41
    rows = {row.name: row for row in found.rows}
    assert rows["layer1/0/conv1"].layers == 4
    works = [work for block in alone if block.name == "layer1/0/conv1" for work in kfac_work.factor(block, 4, 2)]
    one = kfac_estimate.cost(works, 4)
    assert rows["layer1/0/conv1"].factor.flops == 4 * one.flops
    assert rows["layer1/0/conv1"].factor.microseconds["tf32"] == pytest.approx(4 * one.microseconds["tf32"])
    lines = found.table().splitlines()
    assert "nothing is measured" in lines[0]
    (line,) = [line for line in lines if line.startswith("  layer1/0/conv1 ")]
    assert line.split()[1:4] == ["4", "576", "64"]
    (line,) = [line for line in lines if line.startswith("  mean, inverse_every 100, factor_every 10 ")]
    times = [(each.means[100], each.means[100] / each.plain) for each in found.steps]
    assert line.split()[5:] == [f"{number:.2f}" for both in times for number in both]
    record = json.loads(json.dumps(found.as_json()))
    assert record["is"] == "a calculation, nothing of it is measured"
    assert [row["name"] for row in record["rows"]] == [row.name for row in found.rows]
    assert [(each["batch"], each["precision"]) for each in record["steps"]] == [
        (batch, precision) for batch in (4, 2) for precision in ("float32", "tf32")
    ]


def test_the_command(tmp_path, monkeypatch, capsys):
    step = step_estimate.Step([2], [], [step_estimate.Variant("as it is", 1, 0.0, [2500.0])])
    monkeypatch.setattr(step_commands.roofline_step, "step", lambda *_, **__: step)
    rates = "--bandwidth", "4300", "--tflops", "790"
    shape = "--arch", "resnet8", "--size", "32", "--batch", "2"
    file = tmp_path / "record.json"
    benchmark.main(("roofline", *shape, *rates, "--kfac", "--json", str(file)))
    found = json.loads(file.read_text())["kfac"]
    assert [each["plain"] for each in found["steps"]] == [2.5, 2.5]
    assert "K-FAC, batch 2" in capsys.readouterr().out
    benchmark.main(("roofline", *shape, *rates, "--json", str(file)))
    assert "kfac" not in json.loads(file.read_text())


@pytest.mark.parametrize("more", [("--no-step",), ("--dtype", "float32")])
def test_what_does_not_go_with_it(more, capsys):
    with pytest.raises(SystemExit) as ended:
        benchmark.main(("roofline", "--bandwidth", "4300", "--tflops", "790", "--kfac", *more))
    assert ended.value.code == 2
    found = capsys.readouterr()
    assert found.err.startswith("benchmark: --kfac")
    assert not found.out


def test_its_rates_are_those_of_the_step():
    assert (h200_model.COPY * h200_model.OTHER_BYTES, h200_model.GAP) == (COPY, GAP)

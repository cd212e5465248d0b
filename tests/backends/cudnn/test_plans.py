"""cuDNN has engines for what training asks, and they are built: for four GPUs, without one. See the Makefile.

With two versions of cuDNN: the one that is installed, and 9.19, which PyTorch 2.11 brings, for what is marked
``each_version``. Not shown here: that they compute the right thing, or how fast.
"""

import concurrent.futures
import multiprocessing
import os

import pytest

from mixprec.backends.cudnn.engines import Engines
from mixprec.backends.cudnn.errors import NoEngine
from mixprec.backends.cudnn.settings import Settings
from mixprec.base import cudnn_library
from tests.backends.cudnn import cold_start, plan_cases_nchw
from tests.backends.cudnn.plan_cases import NETWORKS, operations_of
from tests.backends.cudnn.plan_variants import of_a_step, variants
from tests.cases import first, pairs
from tests.stand_ins import deviceless_cudnn, fake_cudnn

pytestmark = [pytest.mark.slow, pytest.mark.plans]

try:
    cudnn_library.load()
except cudnn_library.CudnnMissing as error:
    pytest.skip(f"{error}; make test-plans installs it", allow_module_level=True)

WITHOUT_L4 = [gpu for gpu in deviceless_cudnn.GPUS if gpu != "L4"]
HALVES = [(256, "float16"), (32, "bfloat16")]
_cudnn = None  # in a worker


def start_worker(driver):
    global _cudnn
    _cudnn = deviceless_cudnn.load(driver)


def build(operation, gpu, settings):
    """Builds the first engine that can be built, in a worker; returns its name, or why there is none."""
    try:
        engines = Engines(_cudnn, operation, settings, **deviceless_cudnn.arguments_for(_cudnn, gpu))
        name = next(engines.usable(), None)
    except NoEngine as error:
        return None, str(error)
    return name, engines.why_none()


def build_with_float16_sums(operation, gpu, settings):
    """Builds the first engine that is allowed and adds up in less than float32; returns its name or ``None``."""
    engines = Engines(_cudnn, operation, settings, **deviceless_cudnn.arguments_for(_cudnn, gpu))
    engines.graph.select_numeric_notes([_cudnn.numerical_note.REDUCED_PRECISION_REDUCTION])
    return next(engines.usable(), None)


class Builder:
    """Builds in parallel, each plan once."""

    def __init__(self, pool):
        self.pool = pool
        self.results = {}

    def __call__(self, operations, gpu, settings):
        """Returns (name of the engine, or None; the reason if so) for each operation."""
        todo = [operation for operation in operations if (operation, gpu, settings) not in self.results]
        built = self.pool.map(build, todo, [gpu] * len(todo), [settings] * len(todo), chunksize=2)
        self.results.update(zip([(operation, gpu, settings) for operation in todo], built, strict=True))
        return [self.results[operation, gpu, settings] for operation in operations]


@pytest.fixture(scope="module")
def builder(tmp_path_factory):
    driver = deviceless_cudnn.compile_driver(tmp_path_factory.mktemp("driver"))
    context = multiprocessing.get_context("spawn")  # a copy of this process would have what it has loaded
    workers = len(os.sched_getaffinity(0))
    with concurrent.futures.ProcessPoolExecutor(workers, context, start_worker, (driver,)) as pool:
        yield Builder(pool)


def assert_all_are_built(builder, operations, gpu):
    results = builder(operations, gpu, Settings())
    missing = [f"{op}: {why}" for op, (name, why) in zip(operations, results, strict=True) if name is None]
    assert not missing, "\n".join(missing)


def version():
    return _cudnn.backend_version_string()


@pytest.mark.each_version
def test_the_version_is_the_one_that_is_asked_for(builder):
    found = builder.pool.submit(version).result()
    assert found == os.environ.get("CUDNN_VERSION", found)


@pytest.mark.each_version
@pytest.mark.parametrize(("dtype", "gpu"), first(5, pairs(["float16", "bfloat16"], list(deviceless_cudnn.GPUS)), 5))
def test_graphs_of_a_step(builder, dtype, gpu):
    assert_all_are_built(builder, list(of_a_step(dtype).values()), gpu)


@pytest.mark.each_version
def test_what_a_start_by_rule_builds(builder):
    """Of a ResNet-50 at batch 256: sums in convolutions, squares, and no batch normalization."""
    operations = cold_start.asked("heuristic")
    assert {operation.kind for operation in operations} == {"conv_fprop", "conv_dgrad", "conv_wgrad"}
    assert sum("sum" in operation.has for operation in operations) == 23
    assert_all_are_built(builder, operations, "H200")


# In CI each GPU once; in all each network on each GPU, and all four of batch size and dtype for one network. An L4 is
# asked for one: beside the graphs above it has no engine of its own that matters here.
IN_CI = [
    ("resnet50", 256, "float16", "H200"),
    ("resnext50_32x4d", 32, "bfloat16", "B200"),
    ("resnet50", 256, "float16", "A100"),
    ("resnet18", 32, "float16", "L4"),
]
CASES = [
    *(("resnet50", batch, dtype, "H200") for batch in (32, 256) for dtype in ("float16", "bfloat16")),
    *((network, *case, "H200") for network in NETWORKS if network != "resnet50" for case in HALVES),
    *((network, *case, gpu) for network in NETWORKS for gpu, case in zip(("A100", "B200"), HALVES, strict=True)),
]
CASES = [*IN_CI, *(case for case in CASES if case not in IN_CI)]


@pytest.mark.parametrize(("network", "batch", "dtype", "gpu"), first(len(IN_CI), CASES, len(IN_CI)))
def test_network(builder, network, batch, dtype, gpu):
    operations = operations_of(network, batch, dtype)
    assert len(operations) > 50
    assert_all_are_built(builder, operations, gpu)


PLAIN = [
    *((network, "H200", "float16") for network in plan_cases_nchw.NETWORKS),
    *((network, gpu, "float16") for network in plan_cases_nchw.NETWORKS for gpu in ("A100", "B200")),
    *((network, "H200", "float32") for network in plan_cases_nchw.NETWORKS),
]


@pytest.mark.parametrize(("network", "gpu", "dtype"), first(4, PLAIN, 4))
def test_plain_chainer(builder, network, dtype, gpu):
    """Every convolution that Chainer's own networks ask for through the bridge, in NCHW."""
    operations = plan_cases_nchw.operations_of(network, 32, dtype)
    assert len(operations) >= 12
    assert_all_are_built(builder, operations, gpu)


def refused_by_stand_in(operation, settings):
    try:
        engines = Engines(fake_cudnn, operation, settings, sm_version=90)
    except NoEngine:
        return True
    return next(engines.usable(), None) is None


def assert_as_stand_in(builder, operations, gpu, settings):
    results = builder(operations.values(), gpu, settings)
    refused = {name for name, (engine, _) in zip(operations, results, strict=True) if engine is None}
    assert refused == {name for name, operation in operations.items() if refused_by_stand_in(operation, settings)}


@pytest.mark.each_version
@pytest.mark.parametrize("dtype", first(1, ["float16", "bfloat16"], 1))
def test_stand_in_refuses_what_cudnn_refuses_on_an_h200(builder, dtype):
    assert_as_stand_in(builder, variants(dtype), "H200", Settings(autotune="off"))


@pytest.mark.parametrize(("gpu", "tf32"), first(2, [("H200", True), *((gpu, False) for gpu in WITHOUT_L4)], 2))
def test_float32(builder, gpu, tf32):
    """All convolutions have engines that round nothing to TF32."""
    assert_as_stand_in(builder, variants("float32"), gpu, Settings(autotune="off", tf32=tf32))


@pytest.mark.parametrize("gpu", first(1, WITHOUT_L4, 1))
def test_deterministic(builder, gpu):
    """What has an engine has one that gives the same bits each time, but for the sums of a convolution."""
    operations = variants("float16")
    results = builder(operations.values(), gpu, Settings(autotune="off"))
    supported = {name: op for (name, op), (engine, _) in zip(operations.items(), results, strict=True) if engine}
    assert len(supported) > 60
    results = builder(supported.values(), gpu, Settings(autotune="off", deterministic=True))
    missing = {name for name, (engine, _) in zip(supported, results, strict=True) if engine is None}
    assert missing == {name for name in supported if name.endswith("fprop -> sums")} != set()


@pytest.mark.parametrize("gpu", first(1, WITHOUT_L4, 1))
def test_sums_are_float32(builder, gpu):
    """cuDNN lists engines for gradients of float16 whose parts of a sum are added in float16."""
    gradients = [op for name, op in variants("float16").items() if name in ("dgrad 3x3", "wgrad 3x3", "wgrad 1x1")]
    for operation in gradients:
        assert builder.pool.submit(build_with_float16_sums, operation, gpu, Settings(autotune="off")).result() is None

"""cuDNN has engines for what training asks, and they are built: for three GPUs, without one. See the Makefile.

Not shown here: that they compute the right thing, or how fast.
"""

import concurrent.futures
import multiprocessing
import os

import deviceless_cudnn
import fake_cudnn
import pytest
from fake_cudnn_limits import cudnnGraphNotSupportedError
from plan_cases import NETWORKS, operations_of
from plan_variants import variants

from mixprec.backends.cudnn import library
from mixprec.backends.cudnn.engines import Engines
from mixprec.backends.cudnn.errors import NoEngine
from mixprec.backends.cudnn.graphs import describe
from mixprec.backends.cudnn.settings import Settings

try:
    library.load()
except library.CudnnMissing as error:
    pytest.skip(f"{error}; make test-plans installs it", allow_module_level=True)

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


class Builder:
    """Builds in parallel, each plan once."""

    def __init__(self, pool):
        self._pool = pool
        self.results = {}

    def __call__(self, operations, gpu, settings):
        """Returns (name of the engine, or None; the reason if so) for each operation."""
        todo = [operation for operation in operations if (operation, gpu, settings) not in self.results]
        built = self._pool.map(build, todo, [gpu] * len(todo), [settings] * len(todo), chunksize=2)
        self.results.update(zip([(operation, gpu, settings) for operation in todo], built, strict=True))
        return [self.results[operation, gpu, settings] for operation in operations]


@pytest.fixture(scope="module")
def builder(request, tmp_path_factory):
    driver = deviceless_cudnn.compile_driver(tmp_path_factory.mktemp("driver"))
    context = multiprocessing.get_context("spawn")  # a copy of this process would have what it has loaded
    workers = len(os.sched_getaffinity(0))
    with concurrent.futures.ProcessPoolExecutor(workers, context, start_worker, (driver,)) as pool:
        found = Builder(pool)
        yield found
    built = sum(name is not None for name, _ in found.results.values())
    request.config.pluginmanager.getplugin("terminalreporter").write_line(f" {built} plans were built")


@pytest.mark.parametrize("gpu", deviceless_cudnn.GPUS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("batch", [32, 256])
@pytest.mark.parametrize("network", NETWORKS)
def test_network(builder, network, batch, dtype, gpu):
    operations = operations_of(network, batch, dtype)
    assert len(operations) > 50
    results = builder(operations, gpu, Settings())
    missing = [f"{op}: {why}" for op, (name, why) in zip(operations, results, strict=True) if name is None]
    assert not missing, "\n".join(missing)


def refused_by_stand_in(operation):
    graph = fake_cudnn.pygraph(
        io_data_type=library.data_type(fake_cudnn, operation.inputs[0].dtype),
        intermediate_data_type=fake_cudnn.data_type.FLOAT,
        compute_data_type=fake_cudnn.data_type.FLOAT,
    )
    describe(fake_cudnn, graph, operation)
    try:
        graph.build([fake_cudnn.heur_mode.A])
    except cudnnGraphNotSupportedError:
        return True
    return False


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_stand_in_refuses_what_cudnn_refuses_on_an_h200(builder, dtype):
    """In float32 with TF32, which the stand-in knows nothing of."""
    operations = variants(dtype)
    settings = Settings(autotune="off", tf32=dtype == "float32")
    results = builder(operations.values(), "H200", settings)
    refused = {name for name, (engine, _) in zip(operations, results, strict=True) if engine is None}
    assert refused == {name for name, operation in operations.items() if refused_by_stand_in(operation)}


@pytest.mark.parametrize("gpu", deviceless_cudnn.GPUS)
def test_float32_without_tf32(builder, gpu):
    """Only what ends in a Tensor core by its nature has no engine: a prologue."""
    operations = {name: op for name, op in variants("float32").items() if "prologue" not in name and "sums" not in name}
    results = builder(operations.values(), gpu, Settings(autotune="off"))
    missing = {name for name, (engine, _) in zip(operations, results, strict=True) if engine is None}
    refused = {name for name, operation in operations.items() if refused_by_stand_in(operation)}
    assert missing == refused
    assert "fprop 3x3" not in missing


@pytest.mark.parametrize("gpu", deviceless_cudnn.GPUS)
def test_deterministic(builder, gpu):
    """Nothing that has an engine loses the last one when only those that give the same bits each time are allowed."""
    operations = variants("float16").values()
    results = builder(operations, gpu, Settings(autotune="off"))
    supported = [operation for operation, (name, _) in zip(operations, results, strict=True) if name is not None]
    assert len(supported) > 60
    results = builder(supported, gpu, Settings(autotune="off", deterministic=True))
    missing = [str(op) for op, (name, _) in zip(supported, results, strict=True) if name is None]
    assert not missing, "\n".join(missing)

"""The engines that the real cuDNN lists and builds for an H200, without one."""

import concurrent.futures
import inspect
import multiprocessing

import pytest

from mixprec.backends.cudnn.engines import Engines
from mixprec.backends.cudnn.errors import NoEngine
from mixprec.backends.cudnn.settings import Settings
from mixprec.backends.geometry import Convolution
from mixprec.backends.stored import Stored
from mixprec.base import cudnn_library
from tests.backends.cudnn.operations import batch_norm, conv_fprop
from tests.stand_ins import deviceless_cudnn

pytestmark = [pytest.mark.slow, pytest.mark.plans, pytest.mark.each_version]

try:
    cudnn_library.load()
except cudnn_library.CudnnMissing as error:
    pytest.skip(f"{error}; make test-plans installs it", allow_module_level=True)

X, W = (4, 14, 14, 64), (32, 3, 3, 64)


def conv(dtype, x=X):
    return conv_fprop(x, W, Convolution(pad=(1, 1)), dtype)


def in_a_process(function, *arguments, driver):
    """Calls a function of this module in a new process, which loads cuDNN together with a driver."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
        return pool.submit(loaded, driver, function, arguments).result()


def loaded(driver, function, arguments):
    cudnn = deviceless_cudnn.load(driver)
    return function(cudnn, *arguments)


def usable(cudnn, cases):
    """Returns the names of the engines that can be used, with their workspaces, and why there are no others."""
    found = []
    for operation, settings in cases:
        try:
            engines = Engines(cudnn, operation, settings, **deviceless_cudnn.arguments_for(cudnn, "H200"))
        except NoEngine as error:
            found.append(({}, str(error)))
        else:
            found.append(({name: engines.size(name) for name in engines.usable()}, engines.why_none()))
    return found


def rebuilt(cudnn, operation, settings, name):
    """Builds the engine with a name that is known from before."""
    engines = Engines(cudnn, operation, settings, **deviceless_cudnn.arguments_for(cudnn, "H200"))
    return engines.build(name), engines.build("eng999_k2=1")


def with_files(cudnn, operation, folder):
    """Returns name, workspace, whether the first engine was loaded, and whether it said before that it is compiled."""
    stored = Stored(folder, "engines", "a test")
    where = deviceless_cudnn.arguments_for(cudnn, "H200")
    engines = Engines(cudnn, operation, Settings(), stored=stored, **where)
    is_compiled = engines.is_compiled(engines.names[0])
    name = next(engines.usable(load=True))
    engines.keep(name)
    return name, engines.size(name), engines.place(name)[0] is not engines.graph, is_compiled


def on_tensor_cores(cudnn, operation):
    engines = Engines(cudnn, operation, Settings("measure", tf32=True), **deviceless_cudnn.arguments_for(cudnn, "H200"))
    engines.graph.select_numeric_notes([cudnn.numerical_note.TENSOR_CORE])
    return set(engines.usable())


def python_filters(cudnn, operation):
    """Returns whether there are engines in Python, and which filters each run looks at."""
    engines = Engines(cudnn, operation, Settings("measure"), **deviceless_cudnn.arguments_for(cudnn, "H200"))
    graph = engines.graph
    return [plan for plan in graph.plans if graph._engine_for(plan) is not None], graph._note_filters


def signatures(cudnn):
    """Binds the arguments of the calls that need a device."""
    inspect.signature(cudnn.set_stream).bind(handle=None, stream=0)
    inspect.signature(cudnn.pygraph.execute_plan_at_index).bind(None, {1: 256}, 0, 3, None)
    return callable(cudnn.create_handle)


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    return deviceless_cudnn.compile_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def found(driver):
    settings = {autotune: Settings(autotune) for autotune in ("off", "heuristic", "measure")}
    cases = {
        **{autotune: (conv("float16"), given) for autotune, given in settings.items()},
        "deterministic": (conv("float16"), Settings("measure", deterministic=True)),
        "no workspace": (conv("float16"), Settings("measure", workspace=0)),
        "tf32": (conv("float32"), Settings("measure", tf32=True)),
        "float32": (conv("float32"), Settings("measure")),
        "no images": (conv("float16", (0, *X[1:])), Settings()),
    }
    results = in_a_process(usable, list(cases.values()), driver=driver)
    return dict(zip(cases, results, strict=True))


def test_measuring_knows_the_engines_of_both_heuristics_and_the_fallbacks(found):
    names = {autotune: set(found[autotune][0]) for autotune in ("off", "heuristic", "measure")}
    assert names["off"]
    assert names["heuristic"]
    assert names["measure"] == names["off"] | names["heuristic"]
    assert len(names["measure"]) > 10


def test_no_engine_needs_more_workspace_than_the_limit(found):
    sizes, reason = found["no workspace"]
    assert set(sizes.values()) == {0}
    assert set(sizes) == {name for name, size in found["measure"][0].items() if size == 0} != set(found["measure"][0])
    left_out = len(found["measure"][0]) - len(sizes)
    assert reason.startswith(f"{left_out} need more workspace than the limit of 0 MiB; raise cudnn.workspace_mib to ")


def test_deterministic_engines_are_some_of_all(found):
    assert set() < set(found["deterministic"][0]) <= set(found["measure"][0])


def test_float32_without_tf32_has_all_engines_but_those_of_tensor_cores(found, driver):
    cores = in_a_process(on_tensor_cores, conv("float32"), driver=driver)
    assert cores
    assert found["float32"][0]
    assert set(found["float32"][0]) == set(found["tf32"][0]) - cores


def test_a_run_looks_at_no_filters(driver):
    assert in_a_process(python_filters, conv("float32"), driver=driver) == ([], [])


def test_what_cudnn_refuses_is_one_line(found):
    engines, reason = found["no images"]
    assert engines == {}
    assert len(reason.splitlines()) == 1
    assert "TENSOR" in reason


def test_a_name_from_one_process_is_an_engine_in_the_next(found, driver):
    name = list(found["measure"][0])[-1]
    assert in_a_process(rebuilt, conv("float16"), Settings("measure"), name, driver=driver) == (True, False)


@pytest.mark.parametrize("operation", [batch_norm(X, "float16", relu=True, add=True), conv("float16")], ids=str)
def test_an_engine_that_was_compiled_is_loaded_by_the_next_process(driver, tmp_path, operation):
    first = in_a_process(with_files, operation, str(tmp_path), driver=driver)
    second = in_a_process(with_files, operation, str(tmp_path), driver=driver)
    is_compiled = operation.kind == "batch_norm"
    assert first == (*first[:2], False, is_compiled)
    assert second == (*first[:2], is_compiled, is_compiled)
    assert len(list(tmp_path.iterdir())) == is_compiled


def test_the_calls_that_need_a_device_take_their_arguments(driver):
    assert in_a_process(signatures, driver=driver)

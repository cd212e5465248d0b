"""Plans of one device on the stand-in for cuDNN: what is built when, which engine is taken, where it runs."""

import contextlib
import dataclasses
import functools
import gc
import itertools
import logging
import threading
import types
import weakref

import chainer
import numpy as np
import pytest

from mixprec.backends.capture_error import CaptureError
from mixprec.backends.cudnn import context as context_module
from mixprec.backends.cudnn import engines, plans, search, settings
from mixprec.backends.cudnn import search_time as search_time_module
from mixprec.backends.cudnn.autotune import Failures, fastest
from mixprec.backends.cudnn.context import CudnnContext
from mixprec.backends.cudnn.errors import BrokenDevice, NoEngine
from mixprec.backends.cudnn.handles import Handles
from mixprec.backends.cudnn.search_time import SearchTime
from mixprec.backends.cudnn.workspace import Workspaces
from mixprec.backends.geometry import Convolution
from tests.backends.cudnn.operations import arrays, batch_norm, conv_fprop, run
from tests.stand_ins import fake_cudnn
from tests.stand_ins.cudnn_host import HostDevice

# The stand-in has three engines for everything: eng0 wants 1 MiB and is not deterministic, eng1 wants 4 KiB, eng2 wants
# nothing and uses no tensor cores.
X, W = (2, 5, 4, 8), (16, 3, 3, 8)
CONV = conv_fprop(X, W, Convolution(pad=(1, 1)), "float16")
TEXT = (
    "conv_fprop(x float16 2x5x4x8, w float16 16x3x3x8, y float16 2x5x4x16; dilation=(1, 1), groups=1, pad=(1, 1), "
    "relu=False, stride=(1, 1))"
)


@pytest.fixture(autouse=True)
def _choices_in(tmp_path):
    settings.configure(cache=tmp_path, compile_seconds=3)  # one of the engines is compiled
    fake_cudnn.executed.clear()


@pytest.fixture
def device():
    return HostDevice()


@pytest.fixture
def context(device):
    return CudnnContext(0, frontend=fake_cudnn, device=device)


@pytest.fixture
def graphs(monkeypatch):
    """The graphs that are made."""
    made = []

    class Recorded(fake_cudnn.pygraph):
        def __init__(self, **arguments):
            super().__init__(**arguments)
            self.arguments = arguments
            made.append(self)

    monkeypatch.setattr(fake_cudnn, "pygraph", Recorded)
    return made


def addresses(found):
    return {name: array.ctypes.data for name, array in found.items()}


def process(milliseconds=None):
    """A context of its own, on a device on which the engines of the stand-in take so long, by number."""
    costs = (lambda: milliseconds[fake_cudnn.executed[-1][1]],) if milliseconds else ()
    return CudnnContext(0, frontend=fake_cudnn, device=HostDevice(*costs))


# Running


def test_a_plan_computes(context):
    found = arrays(CONV)
    context.plan(CONV).run(*(array.ctypes.data for array in found.values()))
    x, w = (np.moveaxis(found[name].astype(np.float64), -1, 1) for name in "xw")
    expected = np.moveaxis(chainer.functions.convolution_2d(x, w, pad=1).array, 1, -1)
    np.testing.assert_allclose(found["y"], expected, rtol=2**-11)
    again = run(context, CONV)
    np.testing.assert_array_equal(again["y"], found["y"])


def test_arrays_that_are_not_aligned_are_copied(context, caplog):
    """Running statistics among them, which are input and output."""
    operation = batch_norm(X, "float16")
    expected = run(context, operation)
    found = {}
    for name, array in arrays(operation).items():
        memory = np.empty(array.nbytes + 4, np.uint8)
        found[name] = memory[4:].view(array.dtype).reshape(array.shape)
        found[name][...] = array
    assert all(address % 16 for address in addresses(found).values())
    places = addresses(found)
    for moved, running in (("next_mean", "running_mean"), ("next_var", "running_var")):
        places[moved] = places[running]
    context.plan(operation).run(*places.values())
    for name in ("y", "mean", "invstd"):
        np.testing.assert_array_equal(found[name], expected[name])
    for moved, running in (("next_mean", "running_mean"), ("next_var", "running_var")):
        np.testing.assert_array_equal(found[running], expected[moved])
    context.plan(operation).run(*places.values())
    (message,) = caplog.messages
    assert message.endswith(
        "cuDNN needs arrays that begin at multiples of 16 bytes; x, gamma, beta, running_mean, running_var, y, mean, "
        "invstd, next_mean, next_var is copied in each run"
    )


def test_work_is_on_the_plans_device(device, monkeypatch):
    """Whichever is the current one, of which the current stream would be another."""
    monkeypatch.setattr(device, "current", lambda: device.on(7))
    context = CudnnContext(0, frontend=fake_cudnn, device=device)
    seen = []
    execute = fake_cudnn.pygraph.execute_plan_at_index

    def recorded(self, pack, workspace, index, handle):
        seen.append(handle.stream)
        execute(self, pack, workspace, index, handle)

    monkeypatch.setattr(fake_cudnn.pygraph, "execute_plan_at_index", recorded)
    run(context, CONV)
    settings.configure(autotune="measure")
    run(context, CONV)
    assert set(seen) == {7}


# The cache of plans


def test_a_plan_is_built_once(context, graphs):
    same = conv_fprop(X, W, Convolution(pad=(1, 1)), "float16")
    assert context.supports(CONV)
    run(context, CONV)
    assert context.plan(same) is context.plan(CONV)
    assert len(graphs) == 1
    assert context.plan(conv_fprop(X, W, Convolution(pad=(1, 1)), "float16", sums=True)) is not context.plan(CONV)


@pytest.mark.parametrize("change", [{"deterministic": True}, {"autotune": "measure"}])
def test_other_settings_are_other_plans(context, graphs, change):
    before = context.plan(CONV)
    settings.configure(**change)
    assert context.plan(CONV) is not before
    settings.configure(**dataclasses.asdict(settings.Settings(cache=settings.current().cache, compile_seconds=3)))
    assert context.plan(CONV) is before
    assert len(graphs) == 2


def test_a_graph_is_made_for_the_device(context, graphs):
    context.plan(CONV)
    (graph,) = graphs
    assert (graph.arguments["sm_version"], type(graph.arguments["handle"])) == (90, fake_cudnn.Handle)
    types = fake_cudnn.data_type
    assert graph.arguments["io_data_type"] is types.HALF
    assert graph.arguments["intermediate_data_type"] is graph.arguments["compute_data_type"] is types.FLOAT


def test_threads_that_ask_at_the_same_time_build_one_plan(context, graphs):
    barrier, plans = threading.Barrier(4, timeout=30), []

    def ask():
        barrier.wait()
        plans.append(context.plan(CONV))

    in_threads([ask] * 4)
    assert len(graphs) == 1
    assert len(set(map(id, plans))) == 1


# Which engine


@pytest.mark.parametrize("switch", ["setting", "chainer"])
def test_deterministic_mode_excludes_engines_that_are_not(context, switch):
    settings.configure(deterministic=switch == "setting")
    with chainer.using_config("cudnn_deterministic", switch == "chainer"):
        assert context.plan(CONV).engine == "eng1_k0=0"


def test_float32_is_computed_in_float32_unless_tf32_is_asked_for(context):
    wide = conv_fprop(X, W, Convolution(), "float32")
    assert context.plan(wide).engine == "eng2_k0=0"
    settings.configure(tf32=True)
    assert context.plan(wide).engine == "eng0_k0=0"


@pytest.mark.parametrize(("limit", "engine"), [(2**20, "eng0"), (2**20 - 1, "eng1"), (2**12 - 1, "eng2")])
def test_an_engine_that_needs_more_than_the_limit_is_not_taken(context, limit, engine):
    settings.configure(workspace=limit)
    assert context.plan(CONV).engine == f"{engine}_k0=0"


FAULT = "[cudnn_frontend] Error: CUDNN_STATUS_ALLOC_FAILED"


@pytest.mark.parametrize("error", [fake_cudnn.cudnnGraphNotSupportedError("no kernel image"), RuntimeError(FAULT)])
def test_an_engine_that_does_not_build_is_passed_over(context, monkeypatch, error):
    build = fake_cudnn.pygraph.build_plan_at_index

    def failing(self, index):
        if index == 0:
            raise error
        build(self, index)

    monkeypatch.setattr(fake_cudnn.pygraph, "build_plan_at_index", failing)
    assert context.plan(CONV).engine == "eng1_k0=0"


# No engine


def refusal(context, operation):
    assert not context.supports(operation)
    with pytest.raises(NoEngine) as caught:
        context.plan(operation)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


def test_no_engine_says_what_was_asked_where_and_why(context, graphs):
    message = refusal(context, batch_norm((2, 3, 3, 9), "float16", relu=True, eps=0.5))
    assert message == (
        "cuDNN 9.28.0 has no engine on NVIDIA Host & Co. (sm_90) for batch_norm(x float16 2x3x3x9, gamma float32 9, "
        "beta float32 9, running_mean float32 9, running_var float32 9, y float16 2x3x3x9, mean float32 9, "
        "invstd float32 9, next_mean float32 9, next_var float32 9; eps=0.5, momentum=0.1, relu=True), layout NHWC: "
        "no engine for batchnorm -> relu in HALF: batch normalization wants a multiple of 8 channels, of 4 in float32"
    )
    assert len(graphs) == 1  # asked once, though it was wanted twice


def test_no_engine_within_the_limit_says_which_limit(context, monkeypatch):
    monkeypatch.setattr(fake_cudnn, "PLANS", fake_cudnn.PLANS[:2])
    settings.configure(workspace=1024)
    message = refusal(context, CONV)
    assert TEXT in message
    assert message.endswith(
        ": 2 need more workspace than the limit of 0.000976562 MiB; raise cudnn.workspace_mib to 1 or more"
    )


def test_no_engine_without_those_that_were_excluded_says_so(context, monkeypatch):
    monkeypatch.setattr(fake_cudnn, "PLANS", fake_cudnn.PLANS[:1])
    settings.configure(deterministic=True)
    assert refusal(context, CONV).endswith(
        ": all plans are excluded, without those that have the notes NONDETERMINISTIC"
    )


def test_no_engine_that_builds_says_why(context, monkeypatch):
    def failing(self, index):
        raise RuntimeError(f"kernel {index}\nand a second line")

    monkeypatch.setattr(fake_cudnn.pygraph, "build_plan_at_index", failing)
    assert refusal(context, CONV).endswith(": kernel 2")


@pytest.mark.parametrize("method", ["create_execution_plans", "build_plan_at_index"])
def test_a_fault_is_not_the_lack_of_an_engine(context, monkeypatch, method):
    def failing(self, argument):
        raise RuntimeError(FAULT)

    with monkeypatch.context() as patched:
        patched.setattr(fake_cudnn.pygraph, method, failing)
        with pytest.raises(RuntimeError) as caught:
            context.supports(CONV)
    assert str(caught.value) == f"cuDNN cannot build {TEXT}: {FAULT}"
    assert context.supports(CONV)  # it is not remembered


# Measuring


def test_the_fastest_is_taken_and_its_result_is_right(caplog):
    context = process({0: 3.0, 1: 1.0, 2: 2.0})
    expected = run(context, CONV)["y"]
    settings.configure(autotune="measure")
    with caplog.at_level(logging.INFO, "mixprec"):
        np.testing.assert_array_equal(run(context, CONV)["y"], expected)
    assert context.plan(CONV).engine == "eng1_k0=0"
    assert fake_cudnn.executed[-1] == (("conv_fprop",), 1)
    assert caplog.messages == [f"{TEXT}: eng1_k0=0 is the fastest of 3, 1.0000 ms; the first takes 3.0000 ms"]


def test_equally_fast_engines_are_taken_in_the_order_of_the_heuristics(context):
    settings.configure(autotune="measure")
    run(context, CONV)
    assert context.plan(CONV).engine == "eng0_k0=0"


def timed(costs):
    """Times functions that take so many milliseconds, from turn to turn; returns what is found, and their calls."""
    ticks = [itertools.cycle(each) for each in costs]
    calls, device = [], HostDevice(lambda: next(ticks[calls[-1]]))
    functions = [(str(i), functools.partial(calls.append, i)) for i in range(len(costs))]
    return fastest(device, functions, Failures("functions").add), calls


def test_what_is_far_slower_has_two_turns_and_what_is_close_has_ten_more():
    """And one to warm up. Of what is not close five turns are enough."""
    found, calls = timed([[1.0], [1.04], [1.2], [1.51]])
    assert found == ("0", 1.0, 1.0)
    assert [calls.count(number) for number in range(4)] == [16, 16, 6, 3]
    found, calls = timed([[1.3], [1.0]])
    assert found == ("1", 1.0, 1.3)
    assert [calls.count(number) for number in range(2)] == [6, 6]


def test_a_close_call_is_decided_by_the_second_look():
    """Five turns would take the second one."""
    slower_at_first, other = [1.02] * 5 + [1.0] * 10, [1.01] * 15
    found, _ = timed([slower_at_first, other])
    assert found == ("0", 1.0, 1.0)


# The limit of all measuring


@pytest.fixture
def search_time(monkeypatch, announced):
    """Nothing was measured before, and each measurement takes 10 seconds."""
    found = SearchTime()
    for module in (context_module, plans):
        monkeypatch.setattr(module, "SEARCH_TIME", found)
    clock = itertools.count(step=10.0)
    monkeypatch.setattr(search_time_module, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    return found


OTHERS = [conv_fprop((2, size, 4, 8), W, Convolution(pad=(1, 1)), "float16") for size in range(6, 9)]


@pytest.mark.parametrize(("limit", "measured"), [(0, 0), (10, 1), (15, 2), (None, 4)])
def test_when_the_time_is_used_up_engines_are_those_of_the_heuristic(search_time, monkeypatch, caplog, limit, measured):
    heuristics = []
    create = fake_cudnn.pygraph.create_execution_plans
    monkeypatch.setattr(
        fake_cudnn.pygraph,
        "create_execution_plans",
        lambda graph, modes: (heuristics.append([mode.name for mode in modes]), create(graph, modes)),
    )
    context = process({0: 3.0, 1: 1.0, 2: 2.0})
    settings.configure(autotune="measure", search_seconds=limit)
    asked = [CONV, *OTHERS]
    for operation in asked:
        run(context, operation)
    assert [context.plan(operation).engine for operation in asked] == (
        ["eng1_k0=0"] * measured + ["eng0_k0=0"] * (4 - measured)
    )
    assert heuristics == [["A", "B", "FALLBACK"]] * measured + [["B", "FALLBACK"]] * (4 - measured)
    assert (search_time.measured, search_time.unmeasured) == (measured, 4 - measured)
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(said) == (measured < 4)
    assert not said or said[0].startswith(f"cudnn.search_seconds: {limit} s are used up after {measured} operations")


def test_what_is_known_needs_no_time(search_time):
    settings.configure(autotune="measure")
    costs = {0: 3.0, 1: 1.0, 2: 2.0}
    run(process(costs), CONV)
    settings.configure(search_seconds=0)
    later = process(costs)
    run(later, CONV)
    assert later.plan(CONV).engine == "eng1_k0=0"
    assert search_time.unmeasured == 0


def test_without_time_the_first_way_is_taken(search_time, context):
    ways = Candidates(a=2.0, b=1.0)
    settings.configure(autotune="measure", search_seconds=0)
    context = CudnnContext(0, frontend=fake_cudnn, device=ways.device)
    assert context.choose("a or b", ways.candidates) == "a"


def test_what_is_measured_within_a_measurement_counts_once(search_time):
    with search_time.spending(), search_time.spending(operations=1):
        pass
    assert (search_time.spent, search_time.measured) == (20.0, 1)  # the second of three looks at the clock is within


def test_excluded_engines_are_not_measured(context):
    settings.configure(autotune="measure", deterministic=True, workspace=2**12 - 1)
    run(context, CONV)
    assert {index for _, index in fake_cudnn.executed} == {2}


def test_measuring_does_not_move_running_statistics_that_are_updated_in_place(context):
    operation = batch_norm((2, 5, 4, 8), "float16")
    expected = run(context, operation)
    settings.configure(autotune="measure")
    found = arrays(operation)
    places = addresses(found)
    places.update(next_mean=places["running_mean"], next_var=places["running_var"])
    context.plan(operation).run(*places.values())
    assert len(fake_cudnn.executed) > 10
    np.testing.assert_array_equal(found["running_mean"], expected["next_mean"])
    np.testing.assert_array_equal(found["running_var"], expected["next_var"])


def test_a_measured_choice_is_known_to_the_next_process_and_to_nothing_else():
    settings.configure(autotune="measure")
    run(process({0: 3.0, 1: 1.0, 2: 2.0}), CONV)
    fake_cudnn.executed.clear()
    later = process({0: 1.0, 1: 2.0, 2: 3.0})
    run(later, CONV)
    assert fake_cudnn.executed == [(("conv_fprop",), 1)]
    for change in ({"deterministic": True}, {"workspace": 2**19}, {"tf32": True}):
        fake_cudnn.executed.clear()
        settings.configure(**dataclasses.asdict(settings.Settings(cache=settings.current().cache)))
        settings.configure(autotune="measure", **change)
        run(later, CONV)
        assert len(fake_cudnn.executed) > 10, change


def test_a_choice_that_cannot_be_built_any_more_is_measured_again(monkeypatch):
    settings.configure(autotune="measure")
    run(process({0: 3.0, 1: 2.0, 2: 1.0}), CONV)
    monkeypatch.setattr(fake_cudnn, "PLANS", fake_cudnn.PLANS[:2])
    later = process({0: 3.0, 1: 2.0})
    run(later, CONV)
    assert later.plan(CONV).engine == "eng1_k0=0"


@pytest.mark.parametrize("autotune", ["off", "heuristic"])
def test_nothing_is_measured_or_kept_without_being_asked(context, device, monkeypatch, tmp_path, autotune):
    monkeypatch.delattr(HostDevice, "times")
    settings.configure(autotune=autotune)
    run(context, CONV)
    assert context.choose("a or b", [("a", None), ("b", None)]) == "a"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("seconds", "compiled"), [(0, 1), (3, 2), (40, 10)])
def test_engines_that_are_compiled_have_a_budget_of_their_own(context, monkeypatch, seconds, compiled):
    """Each takes 2 seconds, and the first is needed; others take their places, ten in all."""
    clock = itertools.count(step=2.0)
    monkeypatch.setattr(search.time, "monotonic", lambda: next(clock))
    note = {fake_cudnn.behavior_note.RUNTIME_COMPILATION}
    plans = [fake_cudnn.Plan(number, 0, set(), note if number < 30 else set()) for number in range(60)]
    monkeypatch.setattr(fake_cudnn, "PLANS", plans)
    settings.configure(autotune="measure", compile_seconds=seconds)
    run(context, CONV)
    assert {index for _, index in fake_cudnn.executed} == {*range(compiled), *range(30, 40 - compiled)}


def test_engines_for_which_there_is_no_memory_are_not_measured(device, monkeypatch):
    allocate = device.allocate

    def scarce(size):
        if size > 2**12:
            raise MemoryError("out of memory")
        return allocate(size)

    monkeypatch.setattr(device, "allocate", scarce)
    settings.configure(autotune="measure")
    run(CudnnContext(0, frontend=fake_cudnn, device=device), CONV)
    assert {index for _, index in fake_cudnn.executed} == {1, 2}


def test_an_engine_that_two_heuristics_name_is_measured_once(context, monkeypatch):
    monkeypatch.setattr(fake_cudnn, "PLANS", fake_cudnn.PLANS * 2)
    settings.configure(autotune="measure")
    run(context, CONV)
    assert {index for _, index in fake_cudnn.executed} == {0, 1, 2}


# Choosing between implementations


class Candidates:
    """Implementations by name that take so many milliseconds; their device knows how long."""

    def __init__(self, **milliseconds):
        self.calls = []
        self.milliseconds = milliseconds
        self.device = HostDevice(lambda: milliseconds[self.calls[-1]])
        self.candidates = [(name, lambda name=name: self.calls.append(name)) for name in milliseconds]


def test_the_faster_way_is_chosen_once_and_kept():
    settings.configure(autotune="measure")
    timed = Candidates(separate=2.0, fused=1.0)
    context = CudnnContext(0, frontend=fake_cudnn, device=timed.device)
    assert context.choose("conv + bn 3x3", timed.candidates) == "fused"
    called = len(timed.calls)
    assert context.choose("conv + bn 3x3", timed.candidates) == "fused"
    later = CudnnContext(0, frontend=fake_cudnn, device=timed.device)
    assert later.choose("conv + bn 3x3", timed.candidates) == "fused"
    assert len(timed.calls) == called
    timed.milliseconds["fused"] = 3.0
    assert later.choose("conv + bn 1x1", timed.candidates) == "separate"


def test_a_choice_between_ways_that_are_not_there_any_more_is_made_again():
    settings.configure(autotune="measure")
    timed = Candidates(separate=2.0, fused=1.0)
    CudnnContext(0, frontend=fake_cudnn, device=timed.device).choose("key", timed.candidates)
    others = Candidates(separate=2.0, split=3.0)
    assert CudnnContext(0, frontend=fake_cudnn, device=others.device).choose("key", others.candidates) == "separate"


def test_a_way_that_lacked_memory_is_named_and_tried_again_by_the_next_process(caplog):
    settings.configure(autotune="measure")
    timed = Candidates(separate=2.0, fused=1.0)

    def scarce():
        raise MemoryError("out of memory")

    short = [timed.candidates[0], ("fused", scarce)]
    assert CudnnContext(0, frontend=fake_cudnn, device=timed.device).choose("key", short) == "separate"
    assert caplog.messages == ["key: fused is excluded, it failed when it was measured: out of memory"]
    assert CudnnContext(0, frontend=fake_cudnn, device=timed.device).choose("key", timed.candidates) == "fused"


@pytest.mark.usefixtures("no_collector")
def test_ways_that_lacked_memory_hold_none_until_the_collector_comes():
    settings.configure(autotune="measure")
    held = weakref.WeakSet()

    def scarce():
        array = type("Array", (), {})()
        held.add(array)
        raise MemoryError("out of memory")

    timed = Candidates(separate=2.0, fused=1.0)
    context = CudnnContext(0, frontend=fake_cudnn, device=timed.device)
    assert context.choose("key", [timed.candidates[0], ("fused", scarce), ("split", scarce)]) == "separate"
    with contextlib.suppress(MemoryError):  # pytest.raises would hold it, too
        context.choose("other key", [("fused", scarce), ("split", scarce)])
    assert not held


def test_a_way_that_breaks_the_device_is_not_tried_by_the_next_process(monkeypatch):
    settings.configure(autotune="measure")
    timed = Candidates(separate=2.0, fused=1.0)

    def broken():
        raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")

    def breaking():
        monkeypatch.setattr(timed.device, "synchronize", broken)

    context = CudnnContext(0, frontend=fake_cudnn, device=timed.device)
    with pytest.raises(BrokenDevice, match="fused has broken the device"):
        context.choose("key", [timed.candidates[0], ("fused", breaking)])
    timed = Candidates(separate=2.0, fused=1.0)
    assert CudnnContext(0, frontend=fake_cudnn, device=timed.device).choose("key", timed.candidates) == "separate"
    assert "fused" not in timed.calls


def test_the_only_way_is_not_measured():
    settings.configure(autotune="measure")
    timed = Candidates(separate=2.0)
    assert CudnnContext(0, frontend=fake_cudnn, device=timed.device).choose("key", timed.candidates) == "separate"
    assert timed.calls == []


def test_a_way_may_run_plans_that_measure_their_engines():
    settings.configure(autotune="measure")
    timed = Candidates(separate=2.0, fused=1.0)
    context = process()
    found = [(name, lambda function=function: (run(context, CONV), function())) for name, function in timed.candidates]
    assert context.choose("key", found) == "separate"  # all take 1 millisecond on this device
    assert set(timed.calls) == {"separate", "fused"}


# Streams, threads, workspace, capture


def in_threads(functions):
    errors = []

    def caught(function):
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=caught, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.fixture
def handles(monkeypatch):
    """The handles that are made, and each call of set_stream."""
    made, streams = [], []
    create, set_stream = fake_cudnn.create_handle, fake_cudnn.set_stream

    def recorded(handle, stream):
        streams.append(stream)
        set_stream(handle, stream)

    monkeypatch.setattr(fake_cudnn, "create_handle", lambda: made.append(create()) or made[-1])
    monkeypatch.setattr(fake_cudnn, "set_stream", recorded)
    return made, streams


def test_threads_at_work_have_handles_of_their_own(context, handles):
    """The stand-in refuses a handle of another thread."""
    barrier = threading.Barrier(3, timeout=30)

    def work():
        run(context, CONV)
        barrier.wait()  # all three handles are in use at once

    in_threads([work] * 3)
    assert len(handles[0]) == 3


def test_the_handle_of_a_thread_that_has_ended_serves_the_next(device, handles):
    pool = Handles(fake_cudnn, device)
    for stream in (0, 0, 5):
        in_threads([lambda stream=stream: pool.on(stream)])
        gc.collect()
    assert len(handles[0]) == 1
    assert handles[1] == [0, 5]


def test_devices_have_handles_of_their_own(handles):
    for number in range(2):
        run(CudnnContext(number, frontend=fake_cudnn, device=HostDevice()), CONV)
    assert len(handles[0]) == 2


def test_work_goes_to_the_current_stream(context, device, handles, monkeypatch):
    seen = []
    execute = fake_cudnn.pygraph.execute_plan_at_index

    def recorded(self, pack, workspace, index, handle):
        seen.append((handle.stream, workspace))
        execute(self, pack, workspace, index, handle)

    monkeypatch.setattr(fake_cudnn.pygraph, "execute_plan_at_index", recorded)
    for stream in (0, 5, 5, 0):
        with device.on(stream):
            run(context, CONV)
    assert [stream for stream, _ in seen] == [0, 5, 5, 0]
    assert handles[1] == [0, 5, 0]  # only where it changes: cuDNN asks the driver several questions each time
    # Streams run at the same time: each has its own workspace.
    assert seen[0][1] == seen[3][1] != seen[1][1] == seen[2][1]


def test_a_workspace_grows_with_the_largest_plan(context, device):
    settings.configure(workspace=2**12)
    run(context, CONV)
    settings.configure(workspace=2**20)
    run(context, CONV)
    run(context, batch_norm(X, "float16"))
    assert device.allocated == [2**12, 2**20]


def test_no_workspace_is_made_for_plans_that_need_none(context, device):
    settings.configure(workspace=0)
    run(context, CONV)
    assert device.allocated == []


def test_what_ran_before_runs_while_a_graph_captures(context, device):
    settings.configure(autotune="measure")
    with device.on(5):
        run(context, CONV)
        context.choose("key", Candidates(a=1.0, b=2.0).candidates)
    with device.on(5, capturing=True):
        run(context, CONV)
        assert context.choose("key", Candidates(a=1.0, b=2.0).candidates) == "a"


@pytest.mark.parametrize("autotune", ["heuristic", "measure"])
def test_nothing_is_built_while_a_graph_captures(context, device, graphs, autotune):
    settings.configure(autotune=autotune)
    with device.on(5, capturing=True), pytest.raises(CaptureError) as caught:
        context.supports(CONV)
    assert str(caught.value) == (
        f"cuDNN: {TEXT} is not built yet, and cannot be while a CUDA graph captures: run the step eagerly first"
    )
    assert graphs == []
    run(context, CONV)  # what was refused then is not remembered


def test_nothing_is_measured_while_a_graph_captures(context, device):
    settings.configure(autotune="measure")
    assert context.supports(CONV)
    with device.on(5, capturing=True), pytest.raises(CaptureError, match="run the step eagerly first"):
        run(context, CONV)
    timed = Candidates(a=1.0, b=2.0)
    with device.on(5, capturing=True), pytest.raises(CaptureError, match="the candidates for key have not"):
        context.choose("key", timed.candidates)
    assert fake_cudnn.executed == timed.calls == []


def test_no_workspace_is_made_while_a_graph_captures(context, device):
    context.plan(CONV)
    with device.on(5, capturing=True), pytest.raises(CaptureError) as caught:
        run(context, CONV)
    assert str(caught.value) == (
        "cuDNN: a workspace of 1048576 bytes is needed on this stream, and 0 bytes are there; none can be made while a "
        "CUDA graph captures: run the step eagerly first, on the same stream"
    )
    assert fake_cudnn.executed == []


def test_no_handle_is_made_while_a_graph_captures(context, device, handles):
    settings.configure(workspace=0)
    context.plan(CONV)

    def captured():
        with pytest.raises(CaptureError, match="this thread has no handle yet"):
            run(context, CONV)

    with device.on(5, capturing=True):
        in_threads([captured])
    assert len(handles[0]) == 1


def test_a_workspace_that_a_graph_holds_stays(device, monkeypatch):
    """Without a graph the smaller one is free again."""
    alive = set()

    class Memory:
        def __init__(self, size):
            self.ptr = size
            alive.add(size)

        def __del__(self):
            alive.discard(self.ptr)

    monkeypatch.setattr(device, "allocate", Memory)
    spaces = Workspaces(device)
    for stream, capturing, left in ((5, True, {100, 200}), (6, False, {200})):
        alive.clear()
        with device.on(stream):
            assert spaces.address(stream, 100) == 100
        with device.on(stream, capturing=capturing):
            assert spaces.address(stream, 50) == 100
        with device.on(stream):
            assert spaces.address(stream, 200) == 200
            assert spaces.address(stream, 100) == 200
        assert alive == left


@pytest.mark.parametrize(("stream", "count"), [(2, 2), (5, 1)])
def test_streams_of_threads_have_workspaces_of_their_own(device, stream, count):
    """The address of cudaStreamPerThread is the same in all threads, and the stream is not."""
    spaces, found, both = Workspaces(device), set(), threading.Barrier(2)

    def ask():
        found.add(spaces.address(stream, 100))
        both.wait()

    in_threads([ask, ask])
    assert len(found) == count


# --- what cuDNN offers, and should not


WRONG_ENGINES = [
    ("bfloat16", (5, 1, 1, 17), (8, 1, 1, 17), "eng1_k0=0"),
    ("bfloat16", (5, 1, 1, 16), (10, 1, 1, 16), "eng1_k0=0"),
    ("bfloat16", (5, 1, 1, 16), (8, 1, 1, 16), "eng0_k0=0"),
    ("float16", (5, 1, 1, 17), (10, 1, 1, 17), "eng0_k0=0"),
]


@pytest.mark.parametrize(("dtype", "x", "w", "engine"), WRONG_ENGINES)
def test_engines_that_are_wrong_in_bfloat16_are_not_taken(context, monkeypatch, dtype, x, w, engine):
    """Where rows of an input or output are no multiple of 16 bytes; also not if they were chosen before."""
    monkeypatch.setattr(engines, "_WRONG_IF_NARROW", ("eng0",))
    operation = conv_fprop(x, w, Convolution(), dtype)
    assert context.plan(operation).engine == engine
    found = engines.Engines(fake_cudnn, operation, settings.Settings(), sm_version=90)
    assert found.build("eng0_k0=0") == (engine == "eng0_k0=0")


def test_sums_of_channels_that_differ_from_run_to_run_are_not_taken_where_bits_count(context):
    operation = conv_fprop(X, W, Convolution(pad=(1, 1)), "float16", sums=True)
    assert context.supports(operation)
    settings.configure(deterministic=True)
    with pytest.raises(NoEngine, match="differ from run to run, and cudnn"):
        context.plan(operation)
    assert context.supports(CONV)

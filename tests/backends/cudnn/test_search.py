"""The search for an engine: what fails, what computes something else, what is in place, what is compiled only once."""

import ctypes
import functools
import logging
import os

import numpy as np
import pytest

from mixprec.backends.capture_error import CaptureError
from mixprec.backends.cudnn import difference, settings
from mixprec.backends.cudnn.context import CudnnContext
from mixprec.backends.cudnn.errors import BrokenDevice, NoEngine
from mixprec.backends.cudnn.search import text_of
from mixprec.backends.geometry import Convolution
from tests.backends.cudnn.operations import arrays, batch_norm, conv_fprop, run
from tests.stand_ins import fake_cudnn
from tests.stand_ins.cudnn_host import HostDevice
from tests.stand_ins.host_launch import HostLauncher

X, W = (2, 5, 4, 8), (16, 3, 3, 8)
CONV = conv_fprop(X, W, Convolution(pad=(1, 1)), "float16")
NORM = batch_norm(X, "float16", relu=True, add=True)
COSTS = {0: 3.0, 1: 1.0, 2: 2.0}  # eng1 is the fastest


@pytest.fixture(autouse=True)
def _measuring(tmp_path, announced):
    settings.configure(autotune="measure", cache=tmp_path, compile_seconds=3)  # one of the engines is compiled
    fake_cudnn.executed.clear()


class Gpu(HostDevice):
    """Errors of kernels are seen when somebody waits; after an illegal address nothing works."""

    def __init__(self):
        super().__init__(lambda: COSTS[fake_cudnn.executed[-1][1]])
        self.pending, self.broken = None, False

    def synchronize(self):
        error, self.pending = self.pending, None
        if self.broken:
            raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered\nsecond line")
        if error is not None:
            raise error


@pytest.fixture
def gpu():
    return Gpu()


def new_process(gpu):
    return CudnnContext(0, frontend=fake_cudnn, device=gpu)


def taken(gpu, operation=CONV, **replaced):
    """Returns the engine that a new process takes after a search."""
    context = new_process(gpu)
    run(context, operation, **replaced)
    return context.plan(operation).engine


def engine_does(monkeypatch, what):
    """``what(index, pack, workspace, execute)`` runs in place of an engine's own execution."""
    execute = fake_cudnn.pygraph.execute_plan_at_index

    def replaced(self, pack, workspace, index, handle):
        own = functools.partial(execute, self, pack, workspace, index, handle)
        what(self.plans[index].engine, pack, workspace, own)

    monkeypatch.setattr(fake_cudnn.pygraph, "execute_plan_at_index", replaced)


def executed_engines():
    found = {index for _, index in fake_cudnn.executed}
    fake_cudnn.executed.clear()
    return found


# What fails


def test_an_engine_that_fails_later_is_out_and_never_tried_again(gpu, monkeypatch, caplog):
    def failing(engine, pack, workspace, execute):
        execute()
        if engine == 1:
            gpu.pending = RuntimeError("cudaErrorLaunchFailure")

    engine_does(monkeypatch, failing)
    assert taken(gpu) == "eng2_k0=0"
    assert caplog.messages == [f"{CONV}: eng1_k0=0 is excluded, it failed when it was measured: cudaErrorLaunchFailure"]
    executed_engines()
    settings.configure(compile_seconds=40)  # it is searched again
    run(new_process(gpu), CONV)
    assert executed_engines() == {0, 2}


def test_what_an_engine_has_broken_is_said_by_its_name_and_the_next_process_avoids_it(gpu, monkeypatch):
    def breaking(engine, pack, workspace, execute):
        gpu.synchronize()
        execute()
        gpu.broken = engine == 1

    with monkeypatch.context() as patched:
        engine_does(patched, breaking)
        with pytest.raises(BrokenDevice) as caught:
            run(new_process(gpu), CONV)
    assert str(caught.value) == (
        "eng1_k0=0 has broken the device while it was measured, no call of CUDA works any more: "
        "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered; it will not be tried again: restart "
        "the program"
    )
    assert executed_engines() == {0, 1}  # the next one is not blamed
    context = new_process(Gpu())
    run(context, CONV)
    assert context.plan(CONV).engine == "eng2_k0=0"
    assert executed_engines() == {0, 2}


def test_what_was_broken_before_is_not_an_engines_fault(gpu):
    gpu.broken = True
    with pytest.raises(RuntimeError, match="ILLEGAL_ADDRESS") as caught:
        run(new_process(gpu), CONV)
    assert type(caught.value) is not BrokenDevice
    run(new_process(Gpu()), CONV)
    assert 0 in executed_engines()


LACKS = [
    MemoryError("out of memory"),
    RuntimeError("CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    RuntimeError("cudaErrorMemoryAllocation: out of memory"),
]


@pytest.mark.parametrize("error", LACKS)
def test_a_lack_of_memory_says_nothing_about_an_engine(gpu, monkeypatch, error):
    def scarce(engine, pack, workspace, execute):
        if engine == 1:
            raise error
        execute()

    with monkeypatch.context() as patched:
        engine_does(patched, scarce)
        run(new_process(gpu), CONV)
    settings.configure(compile_seconds=40)
    assert taken(gpu) == "eng1_k0=0"


def test_where_all_engines_fail_none_of_them_is_blamed(gpu, monkeypatch):
    """It is what they have in common: cuDNN's libraries, say, or what lies in the first arrays."""

    def failing(engine, pack, workspace, execute):
        raise RuntimeError(f"engine {engine} failed")

    with monkeypatch.context() as patched:
        engine_does(patched, failing)
        with pytest.raises(RuntimeError, match="engine 0 failed"):
            run(new_process(gpu), CONV)
    assert taken(gpu) == "eng1_k0=0"


def test_if_every_engine_has_failed_before_the_message_names_them(gpu):
    context = new_process(gpu)
    text = text_of(CONV, settings.current())
    for number in range(3):
        context._choices_in(settings.current().cache).ban(text, f"eng{number}_k0=0", "it failed")
    with pytest.raises(NoEngine, match="without eng0_k0=0, eng1_k0=0, eng2_k0=0, which have failed before"):
        run(new_process(gpu), CONV)


# What computes something else


def output(pack, operation, name):
    """The array of an output behind its address."""
    tensors = {tensor.name: (uid, tensor) for uid, tensor in enumerate(operation.tensors, start=1)}
    uid, tensor = tensors[name]
    size = int(np.prod(tensor.shape)) * np.dtype(tensor.dtype).itemsize
    return np.frombuffer((ctypes.c_byte * size).from_address(pack[uid]), tensor.dtype).reshape(tensor.shape)


def changed(operation, name, change, engine=1):
    def what(number, pack, workspace, execute):
        execute()
        if number == engine:
            change(output(pack, operation, name))

    return what


def scaled(factor):
    def change(array):
        array[...] = array * factor

    return change


def element(value):
    def change(array):
        array.reshape(-1)[3] = value

    return change


OFF = [
    ("y", scaled(1.05), "y differs by "),
    ("y", element(np.nan), "1 elements of y are not finite"),
    ("y", element(np.inf), "1 elements of y are not finite"),
    ("invstd", scaled(0.9), "invstd differs by "),
]


@pytest.mark.parametrize(("name", "change", "why"), OFF)
def test_an_engine_whose_result_is_off_is_not_taken_and_said_by_name(gpu, monkeypatch, caplog, name, change, why):
    engine_does(monkeypatch, changed(NORM, name, change))
    assert taken(gpu, NORM) == "eng2_k0=0"
    (message,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert f"eng1_k0=0 has deviating results, and is not used: {why}" in message
    settings.configure(compile_seconds=40)
    executed_engines()
    run(new_process(gpu), NORM)
    assert executed_engines() == {0, 2}


def test_what_rounds_otherwise_is_taken(gpu, monkeypatch):
    """By a step of bfloat16."""
    engine_does(monkeypatch, changed(NORM, "y", scaled(1 + 2**-8)))
    assert taken(gpu, NORM) == "eng1_k0=0"


def test_the_first_engine_is_the_one_that_is_wrong(gpu, monkeypatch):
    engine_does(monkeypatch, changed(CONV, "y", scaled(2), engine=0))
    assert taken(gpu) == "eng1_k0=0"
    settings.configure(autotune="heuristic")
    context = new_process(gpu)
    context.plan(CONV)
    assert context.plan(CONV).engine == "eng1_k0=0"


def test_where_all_differ_none_is_left_out(gpu, monkeypatch, caplog):
    def what(engine, pack, workspace, execute):
        execute()
        scaled(1 + engine)(output(pack, CONV, "y"))

    engine_does(monkeypatch, what)
    assert taken(gpu) == "eng1_k0=0"
    text = f"{CONV}: the results of 3 engines differ, and none has the majority: none is left out"
    assert text in caplog.messages


def test_of_two_that_differ_the_first_is_taken_and_none_is_blamed(gpu, monkeypatch, caplog):
    """With one more, a later search finds out: here it was the first that was wrong."""
    with monkeypatch.context() as patched:
        patched.setattr(fake_cudnn, "PLANS", fake_cudnn.PLANS[:2])
        engine_does(patched, changed(CONV, "y", scaled(2), engine=0))
        assert taken(gpu) == "eng0_k0=0"
    (message,) = caplog.messages
    assert message.startswith(f"{CONV}: eng1_k0=0 is not used, it is not known which of two is wrong: y differs by ")
    settings.configure(compile_seconds=40)
    engine_does(monkeypatch, changed(CONV, "y", scaled(2), engine=0))
    assert taken(gpu) == "eng1_k0=0"


def test_an_engine_that_writes_nothing_is_found(gpu, monkeypatch):
    """The right result, of the engine before it, would still be there."""
    calls = []

    def idle(engine, pack, workspace, execute):
        calls.append(engine)
        if engine == 1:
            fake_cudnn.executed.append((("conv_fprop",), 1))
        else:
            execute()

    engine_does(monkeypatch, idle)
    assert taken(gpu) == "eng2_k0=0"


def test_an_engine_that_minds_what_is_in_its_workspace_is_found(gpu, monkeypatch):
    def minding(engine, pack, workspace, execute):
        execute()
        if engine == 1 and ctypes.c_uint32.from_address(workspace).value:
            output(pack, CONV, "y")[...] = 0

    engine_does(monkeypatch, minding)
    assert taken(gpu) == "eng2_k0=0"


def test_places_in_a_mask_are_not_compared(gpu, monkeypatch):
    def other_mask(engine, pack, workspace, execute):
        execute()
        if engine == 1:
            uid = 1 + [tensor.name for tensor in NORM.tensors].index("mask")
            ctypes.memset(pack[uid], 0x55, int(np.prod(X)) // 8)

    engine_does(monkeypatch, other_mask)
    assert taken(gpu, NORM) == "eng1_k0=0"


def test_results_that_overflow_are_alike(gpu):
    """As those of the first steps with a large loss scale: nothing is left out."""
    found = arrays(CONV)
    found["x"][...] = 65504
    context = new_process(gpu)
    run(context, CONV, x=found["x"])
    assert context.plan(CONV).engine == "eng1_k0=0"


def test_without_memory_for_a_copy_nothing_is_compared_and_that_is_said(gpu, monkeypatch, caplog):
    size = int(np.prod(CONV.outputs[0].shape)) * 2
    allocate = gpu.allocate

    def scarce(asked):
        if asked == size:
            raise MemoryError("out of memory")
        return allocate(asked)

    monkeypatch.setattr(gpu, "allocate", scarce)
    engine_does(monkeypatch, changed(CONV, "y", scaled(2)))
    assert taken(gpu) == "eng1_k0=0"
    assert caplog.messages[0].startswith(f"{CONV}: engines are not compared, there is no memory for a copy")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_the_kernel_that_compares_says_what_numpy_says(dtype):
    launcher, count = HostLauncher(), 1000
    kernel = launcher.compile(f"#define THREADS {launcher.threads}\n{difference.source()}", ("difference",))[
        "difference"
    ]
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**16, (2, count), np.uint16)  # all there is: subnormal numbers, infinities, NaN
    a, b = bits.view(dtype) if dtype != "float32" else bits.astype(np.uint32).__lshift__(16).view(dtype)
    b[::2] = a[::2]
    with np.errstate(invalid="ignore", over="ignore"):
        one, other = a.astype(np.float32), b.astype(np.float32)
        both = np.isfinite(one) & np.isfinite(other)
        limit = 2.0**15 if dtype == "float16" else 2.0**127
        odd = np.isfinite(one) != np.isfinite(other)
        finite = np.where(np.isfinite(one), one, other)
        unlike = int((odd & (np.abs(finite) < limit)).sum())
        largest = np.abs(one[both] - other[both]).max()
    found = np.full((3 * launcher.threads, 3), np.nan, np.float32)
    arguments = difference.arguments(a.ctypes.data, b.ctypes.data, count, dtype, found.ctypes.data)
    launcher.launch(kernel, 3, arguments)
    assert unlike > 0
    assert difference.result(found) == (largest, np.abs(one[both]).max(), unlike)


# In place


def running_in_place(context, found):
    places = {name: array.ctypes.data for name, array in found.items()}
    places.update(next_mean=places["running_mean"], next_var=places["running_var"])
    context.plan(NORM).run(*places.values())


def moving_twice(engine, pack, workspace, execute):
    """What reads a statistic after another block has written it."""
    names = [tensor.name for tensor in NORM.tensors]
    uids = {name: names.index(name) + 1 for name in names}
    execute()
    if pack[uids["running_mean"]] == pack[uids["next_mean"]]:
        execute()


@pytest.mark.parametrize("autotune", ["off", "measure"])
@pytest.mark.parametrize("twice", [False, True])
def test_running_statistics_move_once(gpu, monkeypatch, caplog, autotune, twice):
    settings.configure(autotune=autotune)
    expected = run(new_process(gpu), NORM)
    if twice:
        engine_does(monkeypatch, moving_twice)
    found, context = arrays(NORM), new_process(gpu)
    running_in_place(context, found)
    for moved, running in (("next_mean", "running_mean"), ("next_var", "running_var")):
        np.testing.assert_array_equal(found[running], expected[moved])
    fake_cudnn.executed.clear()
    running_in_place(context, found)
    assert len(fake_cudnn.executed) == 1  # it is tried once
    said = [message for message in caplog.messages if "cannot write where it reads" in message]
    assert len(said) == twice
    if twice:
        assert said[0].endswith("of cuDNN cannot write where it reads; next_mean, next_var is copied in each run")


def test_a_statistic_that_moves_slowly_is_seen_to_move_twice(gpu, monkeypatch, caplog):
    settings.configure(autotune="off")
    slow = batch_norm(X, "float16", relu=True, add=True, momentum=2.0**-12)
    engine_does(monkeypatch, moving_twice)
    found = arrays(slow)
    places = {name: array.ctypes.data for name, array in found.items()}
    places.update(next_mean=places["running_mean"], next_var=places["running_var"])
    new_process(gpu).plan(slow).run(*places.values())
    assert "cannot write where it reads" in caplog.text


def test_nothing_is_tried_in_place_while_a_graph_captures(gpu):
    settings.configure(autotune="off")
    context = new_process(gpu)
    run(context, NORM)
    with gpu.on(5, capturing=True), pytest.raises(CaptureError, match="have not been tried in place"):
        running_in_place(context, arrays(NORM))


# What is compiled


@pytest.fixture
def built(monkeypatch):
    """Engines by number, as often as they are built or loaded."""
    found = {"built": [], "loaded": 0}
    build, load = fake_cudnn.pygraph.build_plan_at_index, fake_cudnn.pygraph.deserialize

    def counted(self, index):
        found["built"].append(self.plans[index].engine)
        build(self, index)

    def loading(self, data):
        found["loaded"] += 1
        load(self, data)

    monkeypatch.setattr(fake_cudnn.pygraph, "build_plan_at_index", counted)
    monkeypatch.setattr(fake_cudnn.pygraph, "deserialize", loading)
    return found


def test_a_known_choice_builds_one_engine_and_what_was_compiled_is_loaded(gpu, built, tmp_path):
    expected = run(new_process(gpu), CONV)["y"]
    assert built == {"built": [0, 1, 2], "loaded": 0}
    built["built"].clear()
    context = new_process(gpu)  # eng1 is compiled at run time
    np.testing.assert_array_equal(run(context, CONV)["y"], expected)
    assert built == {"built": [], "loaded": 1}
    assert (context.plan(CONV).engine, context.plan(CONV).workspace) == ("eng1_k0=0", 2**12)
    assert len(os.listdir(tmp_path / "plans")) == 1  # not those that were only measured


def test_an_engine_that_need_not_be_compiled_is_built(gpu, built, monkeypatch):
    monkeypatch.setitem(COSTS, 0, 0.5)
    run(new_process(gpu), CONV)
    built["built"].clear()
    run(new_process(gpu), CONV)
    assert built == {"built": [0], "loaded": 0}


def test_an_engine_that_cannot_be_serialized_is_used_and_compiled_each_time(gpu, built, tmp_path, monkeypatch, caplog):
    def refusing(self):
        raise RuntimeError("CUDNN_STATUS_NOT_SUPPORTED")

    monkeypatch.setattr(fake_cudnn.pygraph, "serialize", refusing)
    for _ in range(2):
        assert taken(gpu) == "eng1_k0=0"
    assert built == {"built": [0, 1, 2, 1], "loaded": 0}
    assert not (tmp_path / "plans").exists()
    assert caplog.messages == [f"{CONV}: eng1_k0=0 cannot be kept on disk: CUDNN_STATUS_NOT_SUPPORTED"]


@pytest.mark.parametrize("damage", ["truncated", "changed", "empty"])
def test_a_damaged_file_is_said_once_and_made_anew(gpu, built, tmp_path, caplog, damage):
    run(new_process(gpu), CONV)
    (path,) = (tmp_path / "plans").iterdir()
    content = path.read_bytes()
    path.write_bytes({"truncated": content[:-3], "changed": content[:-1] + b"?", "empty": b""}[damage])
    built["built"].clear()
    run(new_process(gpu), CONV)
    assert built == {"built": [1], "loaded": 0}
    (message,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert message == f"{path} is damaged, it is made again (compiled engines of cuDNN)"
    built["built"].clear()
    run(new_process(gpu), CONV)
    assert built == {"built": [], "loaded": 1}


def test_what_was_compiled_for_another_device_or_version_is_not_loaded(gpu, built, monkeypatch):
    monkeypatch.setattr(fake_cudnn, "PLANS", fake_cudnn.PLANS[1:2])
    settings.configure(autotune="off")
    run(new_process(gpu), CONV)
    assert built == {"built": [1], "loaded": 0}
    other = Gpu()
    other.name = "another"
    run(new_process(other), CONV)
    monkeypatch.setattr(fake_cudnn, "backend_version_string", lambda: "9.29.0")
    run(new_process(gpu), CONV)
    assert built == {"built": [1, 1, 1], "loaded": 0}
    run(new_process(gpu), CONV)
    assert built == {"built": [1, 1, 1], "loaded": 1}


@pytest.mark.parametrize("method", ["deserialize", "execute_plan_at_index"])
def test_what_is_loaded_and_fails_is_compiled_anew(gpu, built, monkeypatch, caplog, method):
    """The engine is not to blame: it is not banned, and the new file works."""
    expected = run(new_process(gpu), CONV)["y"]
    own = getattr(fake_cudnn.pygraph, method)

    def failing(self, *arguments):
        if method == "deserialize" or self.deserialized:
            raise RuntimeError("CUDNN_STATUS_NOT_INITIALIZED")
        own(self, *arguments)

    monkeypatch.setattr(fake_cudnn.pygraph, method, failing)
    built["built"].clear()
    context = new_process(gpu)
    np.testing.assert_array_equal(run(context, CONV)["y"], expected)
    assert context.plan(CONV).engine == "eng1_k0=0"
    assert built["built"] == [1]
    assert caplog.messages == [f"{CONV}: eng1_k0=0 from disk fails, it is compiled again: CUDNN_STATUS_NOT_INITIALIZED"]

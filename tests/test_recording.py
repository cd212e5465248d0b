"""The stand-in for a device that writes down what it is asked, and ResNet-50's launches counted with it."""

import chainer
import chainer.functions as F
import fake_cudnn
import numpy as np
import pytest
from plan_variants import variants

from mixprec import backends, functions
from mixprec.backends import recording
from mixprec.backends.cudnn.engines import Engines
from mixprec.backends.cudnn.errors import NoEngine
from mixprec.backends.cudnn.settings import Settings
from mixprec.backends.geometry import BatchNorm
from mixprec.backends.notes import taking
from mixprec.benchmark import launches
from mixprec.functions import widening


@pytest.fixture(autouse=True)
def _installed():
    recording.install()


def _asked(notes):
    """What was asked of the device but for memory."""
    return [note for note in notes if note.kind != "memory"]


def test_primitives_are_those_of_the_cuda_backend_and_compute_nothing():
    x = recording.array(np.ones((2, 4, 4, 8), np.float16))
    with taking() as notes:
        y = backends.primitives_of(x).global_average_pool(x)
    assert (y.shape, y.dtype, type(y)) == ((2, 8), np.float16, recording.Array)
    assert [(note.kind, note.arguments[1:3]) for note in _asked(notes)] == [("kernel", (x.ctypes.data, y.ctypes.data))]


def test_cudnn_is_asked_for_operations_with_addresses():
    x, gamma, beta = (
        recording.array(np.ones(shape, dtype)) for shape, dtype in (((2, 3, 3, 8), "f2"), (8, "f"), (8, "f"))
    )
    with taking() as notes:
        y, saved = backends.primitives_of(x).batch_norm(x, gamma, beta, None, BatchNorm(relu=True))
    (note,) = [note for note in notes if note.kind == "cudnn"]
    operation, *addresses = note.arguments
    assert note.name == operation.kind == "batch_norm"
    assert len(addresses) == len(operation.tensors)
    places = dict(zip((tensor.name for tensor in operation.tensors), addresses, strict=True))
    assert places["x"] == x.ctypes.data
    assert places["y"] == y.ctypes.data
    assert places["mean"] == saved.mean.ctypes.data


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_it_supports_what_the_other_stand_in_for_cudnn_does(dtype):
    """Which tests/test_plans.py compares with cuDNN. Scale and bias of a prologue are always float32 here."""
    asked = {name: operation for name, operation in variants(dtype).items() if not name.startswith("prologue")}
    supported = {name for name, operation in asked.items() if recording.Dnn().supports(operation)}
    assert supported == {name for name, operation in asked.items() if _has_engine(operation)}
    assert supported < set(asked)


def _has_engine(operation):
    try:
        engines = Engines(fake_cudnn, operation, Settings(autotune="off"), sm_version=90)
    except NoEngine:
        return False
    return next(engines.usable(), None) is not None


@pytest.mark.parametrize(
    ("do", "expected"),
    [
        (lambda x: x + x, ["array"]),
        (lambda x: x.transpose(0, 2, 1), []),
        (lambda x: x.reshape(-1)[2:4], []),
        (lambda x: x.sum(), ["array"]),
        (lambda x: x.astype("f2"), ["array"]),
        (lambda x: x.astype("f4", copy=False), []),
        (lambda x: np.empty_like(x), []),
        (lambda x: x.copy(), ["array"]),
        (lambda x: x.fill(0), ["array"]),
        (lambda x: np.zeros_like(x), ["array"]),
        (lambda x: np.concatenate([x, x]), ["array"]),
        (lambda x: x.__setitem__(0, 1), ["array"]),
        (lambda x: x.__iadd__(1), ["array"]),
        (lambda x: float(x[0, 0, 0]), ["read"]),
        (lambda x: bool((x > 0).all()), ["array", "array", "read"]),
        (lambda x: x.tolist(), ["read"]),
    ],
)
def test_what_a_device_would_launch_or_hand_over_is_noted(do, expected):
    x = recording.array(np.ones((2, 3, 4), np.float32))
    with taking() as notes:
        do(x)
    assert [note.kind for note in _asked(notes)] == expected


def test_functions_of_chainer_are_seen_as_on_a_device():
    widening.install()  # what convert() does to float16 on NumPy
    x = chainer.Variable(recording.array(np.ones((2, 3), np.float16)))
    with taking() as notes:
        y = F.add(x, x)
    assert type(y.array) is recording.Array
    assert [note.name for note in _asked(notes)] == ["add"]


def test_dropout_with_its_random_state():
    functions.reset_dropout()
    x = recording.array(np.ones((4, 8), np.float16))
    with taking() as notes:
        functions.dropout(x)
    functions.reset_dropout()
    # Once the state, its counter of 0; then a key and a launch for each dropout.
    assert [(note.kind, note.name) for note in _asked(notes)] == [
        ("array", "fill"),
        ("array", "fill"),
        ("kernel", "next_key"),
        ("kernel", "dropout"),
    ]


def test_resnet50_needs_no_more_than_300_launches_and_no_conversion_in_its_trunk():
    counts = launches.count("resnet50", batch=2, size=64)
    assert counts.total <= launches.BOUND
    assert counts.reads == 0
    found = counts.launches
    # 53, but for the images; the filter of 3 channels becomes one of 4, and its gradient the reverse.
    assert (found["conv_fprop"], found["conv_dgrad"], found["conv_wgrad"]) == (54, 52, 54)
    assert found["batch_norm"] == found["batch_norm_backward"] == 53
    assert found["to_nhwc"] == 1  # the images at the entrance
    assert not {"to_nchw", "cast"} & found.keys()
    assert sum(number for name, number in found.items() if name.startswith(launches.OTHERS)) <= 20


def test_counts_do_not_depend_on_the_size_of_the_images():
    assert launches.count("resnet18", batch=2, size=32) == launches.count("resnet18", batch=4, size=96)


def test_a_conversion_in_the_trunk_is_seen(monkeypatch):
    pool = functions.max_pooling_2d

    def there_and_back(x, *arguments, **keywords):
        return functions.to_nhwc(functions.to_nchw(pool(x, *arguments, **keywords)))

    monkeypatch.setattr(functions, "max_pooling_2d", there_and_back)
    found = launches.count("resnet18", batch=2, size=32).launches
    assert (found["to_nhwc"], found["to_nchw"]) == (3, 2)

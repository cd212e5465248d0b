"""DALI on a GPU, without one: what is asked of DALI, and how its batches become arrays, with a stub in CuPy's place."""

import contextlib
import functools
import sys
import types
import weakref

import numpy as np
import pytest
from chainer import serializers

from tests.data.loader_settings import dali_iterator, objects
from tests.data.test_dali import MEAN, STD, assert_same, flat, noise, take  # noqa: F401 (fixtures)

dali = pytest.importorskip("nvidia.dali", reason="needs NVIDIA DALI: pip install -e '.[dali]'")


from mixprec.data.data_error import DataError  # noqa: E402
from mixprec.data.loaders import dali as iterators  # noqa: E402
from mixprec.data.loaders import pipeline  # noqa: E402
from mixprec.data.loaders.augmentation import DrawnBatches  # noqa: E402
from mixprec.data.loaders.device_batches import DeviceBatches  # noqa: E402
from mixprec.data.loaders.epochs import Epochs, Stages  # noqa: E402
from mixprec.data.loaders.pipeline import DaliDevice, define_pipeline, new_pipeline  # noqa: E402
from mixprec.data.loaders.staged import StagedIterator  # noqa: E402
from mixprec.data.sources.shards import ImageShards  # noqa: E402


class Graph:
    """The operators of a pipeline, as DALI has them before it looks for a GPU; its own checks have seen them."""

    def __init__(self, monkeypatch, images, device, **settings):
        defaults = {"dtype": "float16", "pad_channels": True, "threads": 3, "prefetch": 5, "shuffle_window": 100}
        monkeypatch.setattr(
            pipeline, "new_pipeline", lambda *graph, device_id, **rest: new_pipeline(*graph, device_id=None, **rest)
        )
        spec, delivery = objects(2, **{**defaults, **settings})
        found = define_pipeline(images, spec, device, delivery, drawn=DrawnBatches(spec, lambda number: (0, (0, 1)), 0))
        found._build_graph()
        self.prefetch, self.threads = found.prefetch_queue_depth, found.num_threads
        self.devices = [output.device for output in found._graph_outputs]
        self._operators = {operator.name: operator._op for operator in found._ops}

    def kind(self, name):
        return self._operators[name].schema_name

    def device(self, name):
        return self._operators[name].device

    def arguments(self, name):
        return self._operators[name]._init_args

    def of_kind(self, kind):
        """The devices of all operators of a kind."""
        return [
            operator.device for operator in self._operators.values() if getattr(operator, "schema_name", "") == kind
        ]


ADDED = {"preallocate_width_hint", "preallocate_height_hint", "device_memory_padding", "host_memory_padding"}
ADDED |= {"hw_decoder_load"}


DECODERS = [({"train": True}, "decoders__ImageRandomCrop"), ({"train": False, "resize": 20}, "decoders__Image")]


@pytest.mark.parametrize(("settings", "kind"), DECODERS)
def test_the_gpu_decodes_and_does_the_rest(monkeypatch, flat, settings, kind):  # noqa: F811
    graph = Graph(monkeypatch, flat, DaliDevice(device_id=0), **settings)
    assert (graph.kind("decode"), graph.device("decode")) == (kind, "mixed")
    decoder = graph.arguments("decode")
    assert decoder["hw_decoder_load"] == 0.65
    assert decoder["preallocate_width_hint"] == 5980
    assert set(decoder) >= ADDED
    assert graph.device("resize") == graph.device("normalize") == "gpu"
    assert graph.devices == ["gpu", "gpu"]
    assert (graph.prefetch, graph.threads) == (5, 3)


@pytest.mark.parametrize("train", [True, False])
def test_the_cpu_decodes_for_the_gpu(monkeypatch, flat, train):  # noqa: F811
    graph = Graph(monkeypatch, flat, DaliDevice(device_id=0, decode="cpu"), train=train)
    assert graph.device("decode") == "cpu"
    assert not ADDED & set(graph.arguments("decode"))
    assert graph.device("normalize") == "gpu"
    assert graph.devices == ["gpu", "gpu"]


def test_the_cpu_has_the_same_graph_but_for_the_devices(monkeypatch, flat):  # noqa: F811
    host, device = Graph(monkeypatch, flat, DaliDevice()), Graph(monkeypatch, flat, DaliDevice(device_id=0))
    assert host.devices == ["cpu", "cpu"]
    for name in ("reader", "resize", "normalize"):
        assert (host.kind(name), host.arguments(name)) == (device.kind(name), device.arguments(name))
    decoder = device.arguments("decode")
    assert host.arguments("decode") == {name: decoder[name] for name in decoder if name not in ADDED}


def test_no_operator_has_a_name_of_dalis_choice(monkeypatch, flat):  # noqa: F811
    """A checkpoint finds operators by their names, and DALI counts those that it gives through the whole process."""
    graph = Graph(monkeypatch, flat, DaliDevice(device_id=0, decode="cpu"), flip=True)
    assert {name for name in graph._operators if not name.startswith("__Copy")} == {
        *("reader", "decode", "resize", "mirror", "normalize"),
    }


def test_augmentation_is_done_on_the_gpu(monkeypatch, flat):  # noqa: F811
    """All that has pixels; what is to be done is drawn on the host. Two operations are drawn, of ten kinds each."""
    graph = Graph(monkeypatch, flat, DaliDevice(device_id=0), flip=True, augment="rand", erase=0.5)
    for kind in ("WarpAffine", "Filter", "Equalize"):
        assert graph.of_kind(kind) == ["gpu"] * 2
    for name in ("resize", "flip", "normalize", "erase"):
        assert graph.device(name) == "gpu"
    for name in ("steps", "boxes", "mirror"):
        assert graph.device(name) == "cpu"
    assert graph.arguments("normalize")["mirror"] == 0
    assert graph.devices == ["gpu", "gpu"]
    assert "flip" not in Graph(monkeypatch, flat, DaliDevice(device_id=0), flip=True, erase=0.5)._operators


def test_labels_of_webdataset_stay_on_the_host(monkeypatch):
    none = np.zeros(0, np.int64)
    images = ImageShards("/", ("0",), none, "webdataset", ("/none.tar",), none, (), none, none, ())
    monkeypatch.setattr(ImageShards, "index_files", lambda self: ["/none.idx"])
    assert Graph(monkeypatch, images, DaliDevice(device_id=0)).devices == ["gpu", "cpu"]


IMPOSSIBLE = [({"device_id": -1}, "device_id -1: "), ({"decode": "mixed"}, "decode 'mixed': must be 'gpu' or 'cpu'")]


@pytest.mark.parametrize(("arguments", "message"), IMPOSSIBLE)
def test_impossible_argument_is_named(arguments, message):
    with pytest.raises(DataError) as caught:
        DaliDevice(**arguments).validate()
    assert str(caught.value).startswith(message)


class Event:
    def __init__(self, log):
        self.done, self._log = False, log

    def record(self, stream):
        self._log.append(("record", stream))

    def synchronize(self):
        self._log.append(("wait for event", self))
        self.done = True


class Tensor:
    """What DALI gives for an output on its device."""

    device_id = 0

    def __init__(self, array):
        self._array = array

    def as_tensor(self):
        return self


class Array(np.ndarray):
    """An array of CuPy; weak references to it are possible."""


class Stream:
    ptr = 5


@pytest.fixture
def cupy(monkeypatch):
    """A stub: events are done when a test says so, and nothing may wait for the device."""
    stub = types.SimpleNamespace(log=[], events=[], stream=Stream())

    def event(*, disable_timing):
        assert disable_timing
        stub.events.append(Event(stub.log))
        return stub.events[-1]

    def from_dlpack(tensor):
        array = tensor._array if isinstance(tensor, Tensor) else np.from_dlpack(tensor)
        return array.view(Array)

    stub.cuda = types.SimpleNamespace(
        Device=lambda number: contextlib.nullcontext(),
        PinnedMemoryPool=lambda: None,
        Event=event,
        get_current_stream=lambda: stub.stream,
    )
    stub.from_dlpack = from_dlpack
    stub.empty = lambda shape, dtype: np.empty(shape, dtype).view(Array)
    monkeypatch.setitem(sys.modules, "cupy", stub)
    return stub


class Pipeline:
    def __init__(self, log):
        self._log, self.number = log, 0

    def run(self, stream):
        self._log.append(("run", stream))
        self.number += 1
        pixels = np.full((2, 4, 4, 3), self.number, np.float16)
        return Tensor(pixels), Tensor(np.array([[self.number], [7]], np.int32))


def test_batches_are_the_memory_of_dali_in_the_current_stream(cupy):
    made, batches = Pipeline(cupy.log), DeviceBatches(0, 4)
    x, t = batches.take(made)
    assert x.shape == (2, 4, 4, 3)
    assert (x == 1).all()
    assert t.tolist() == [1, 7]
    assert t.shape == (2,)
    assert cupy.log == [("run", cupy.stream)]
    first, cupy.stream = cupy.stream, Stream()
    del x, t
    batches.take(made)
    # What was asked with the first batch may be in the stream that is current now; `first` is behind.
    assert cupy.log[1:] == [("record", cupy.stream), ("run", cupy.stream)]
    assert first is not cupy.stream


def test_a_batch_that_is_used_after_the_next_ones_were_asked_for_is_kept_until_that_is_done(cupy):
    """As those of one step of the optimizer are, of which the first one is used when the last one has come."""
    made, batches = Pipeline(cupy.log), DeviceBatches(0, 4)

    def take_another():
        batches.take(made)
        for event in cupy.events[:-1]:  # all that was asked before the last batch was asked for
            event.done = True

    x, t = batches.take(made)
    memory, view = weakref.ref(x), x[..., :2].transpose(0, 3, 1, 2)
    del x
    for _ in range(3):
        take_another()
    assert memory() is not None, "a view of its images is held"
    del view
    for _ in range(3):
        take_another()
    assert memory() is not None, "its labels are held"
    del t
    take_another()
    assert memory() is not None, "what was asked with it may not be done"
    take_another()
    take_another()
    assert memory() is None
    assert not any(words[0] == "wait for event" for words in cupy.log)


def test_a_host_that_is_far_ahead_waits_for_the_oldest_batch_alone(cupy):
    made, batches = Pipeline(cupy.log), DeviceBatches(0, 2)
    kept = [weakref.ref(batches.take(made)[0]) for _ in range(4)]
    waits = [words[1] for words in cupy.log if words[0] == "wait for event"]
    assert waits == cupy.events[:2]
    assert [memory() is not None for memory in kept] == [False, False, True, True]


def test_a_batch_that_nobody_wants_does_not_replace_the_last_one(cupy):
    made, batches = Pipeline(cupy.log), DeviceBatches(0, 4)
    x, _ = batches.take(made)
    memory = weakref.ref(x)
    del x
    batches.leave_out(made)
    assert made.number == 2
    assert memory() is not None


def test_a_pipeline_that_makes_way_has_its_batches_until_they_are_used(cupy):
    """The host waits for all that was asked for in the current stream, once; then nothing is kept."""
    made, batches = Pipeline(cupy.log), DeviceBatches(0, 4)
    kept = [weakref.ref(batches.take(made)[0]) for _ in range(2)]
    cupy.log.clear()
    batches.finish()
    assert cupy.log == [("record", cupy.stream), ("wait for event", cupy.events[-1])]
    assert [memory() for memory in kept] == [None, None]


def test_the_loader_of_a_stage_that_is_over_makes_way(on_device, flat, cupy):  # noqa: F811
    """And an iterator that is ended otherwise waits for nothing, as it may be when Python ends."""
    make = on_device
    epochs = [
        Epochs(images=len(flat), batch_size=7),
        Epochs(images=len(flat), batch_size=7, epochs_before=1, batches_before=3),
    ]
    iterator = StagedIterator(
        Stages(tuple(epochs)), [lambda: make(flat, 7, device_id=0), lambda: make(flat, 7, device_id=0, before=(1, 3))]
    )
    for _ in range(3):
        next(iterator)
    cupy.log.clear()
    next(iterator)
    assert [words[0] for words in cupy.log].count("wait for event") == 1
    cupy.log.clear()
    iterator.finalize()
    assert "wait for event" not in [words[0] for words in cupy.log]


@pytest.fixture
def on_device(cupy, monkeypatch):
    """DaliIterator for a GPU, whose pipeline is that of the CPU; labels come on the host, as with WebDataset."""
    uploads = []

    def define(images, spec, device, delivery, **settings):
        made = define_pipeline(images, spec, DaliDevice(), delivery, **settings)
        if device.device_id is not None:
            run = made.run
            made.run = lambda stream: run() if stream is cupy.stream else pytest.fail("not on the current stream")
        return made

    def upload(launcher, source, target):
        uploads.append(source.nbytes)
        target.view(np.uint8)[:] = source

    monkeypatch.setattr(iterators, "define_pipeline", define)
    monkeypatch.setattr("mixprec.backends.launch.CupyLauncher.upload", upload)

    build = functools.partial(dali_iterator)
    build.uploads = uploads
    return build


@pytest.mark.parametrize("last_batch", ["partial", "drop", "pad"])
def test_an_iterator_on_a_device_gives_what_one_on_the_cpu_does(on_device, noise, last_batch):  # noqa: F811
    """Accounting, padding, and a snapshot in between; with batches of which some are made and not given."""
    settings = {"flip": True, "pad_channels": True, "last_batch": last_batch, "num_shards": 2, "shard": 0}
    expected = take(on_device(noise, 5, **settings), 12)
    device = on_device(noise, 5, device_id=0, **settings)
    found = take(device, 4)
    fresh = on_device(noise, 5, device_id=0, **settings)
    serializers.NpzDeserializer(serializers.npz.serialize(device)).load(fresh)
    found += take(fresh, 8)
    assert all(isinstance(array, Array) for batch in found for array in batch[:2])
    assert_same(found, expected)
    assert set(on_device.uploads) == ({20, 4} if last_batch == "partial" else {20})  # labels


def test_a_snapshot_of_another_device_is_refused(on_device, noise):  # noqa: F811
    saved = serializers.npz.serialize(on_device(noise, device_id=0))
    with pytest.raises(DataError, match="decode is cpu here, gpu in the snapshot"):
        serializers.NpzDeserializer(saved).load(on_device(noise, device_id=0, decode="cpu"))
    with pytest.raises(DataError, match="device is cpu here, gpu in the snapshot"):
        serializers.NpzDeserializer(saved).load(on_device(noise))


def test_without_a_gpu_the_error_is_one_line(cupy, noise):  # noqa: F811
    from mixprec.app.parts import gpus

    if gpus.usable_device_count():
        pytest.skip("there is a GPU")
    iterator = dali_iterator(noise, device_id=0)
    with pytest.raises(DataError, match=r"^DALI cannot start: .*CUDA") as caught:
        next(iterator)
    assert "\n" not in str(caught.value)

"""Several ranks, as far as one process can tell: places, agreement, averages, snapshots of other numbers of ranks."""

import json
import logging
import sys
import threading
import types

import chainer
import chainer.links as L
import numpy as np
import pytest

from mixprec.app import config as configs
from mixprec.app.parts import devices, images, rank_states
from mixprec.data.data_error import DataError
from mixprec.distributed import launched, processes
from mixprec.training import snapshots
from mixprec.training.accumulation import Accumulated
from mixprec.training.evaluation import Evaluator

HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}


PLACES = [
    ({}, None),
    (HYDRA, (1, 4, 1)),
    ({"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "2"}, (5, 8, 2)),
    # srun --mpi=pmi2, srun --mpi=pmix
    ({"PMI_RANK": "3", "PMI_SIZE": "4", "SLURM_LOCALID": "3", "SLURM_PROCID": "3"}, (3, 4, 3)),
    ({"PMIX_RANK": "3", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1"}, (3, 4, 1)),
    # the batch script of a job with tasks, and tasks without MPI
    ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}, None),
    ({"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "0"}, None),
    ({"PMI_RANK": "", "PMI_SIZE": "4"}, None),
]


@pytest.mark.parametrize(("environment", "place"), PLACES)
def test_the_place_is_that_of_the_launchers_environment(environment, place):
    found = launched.rank_in(environment)
    assert found == (None if place is None else launched.LaunchedRank(*place))


@pytest.mark.parametrize("environment", [{}, {"PMI_RANK": "0", "PMI_SIZE": "1"}])
def test_one_process_does_not_import_mpi(environment, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mpi4py", None)
    assert processes.find(environment).size == 1


@pytest.mark.parametrize(
    ("rank", "local", "begin"), [(0, 0, "error: 4 proc"), (2, 0, "rank 2: error: 4 proc"), (1, 1, None)]
)
def test_without_mpi4py_one_rank_of_each_machine_says_what_to_install(rank, local, begin, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mpi4py", None)
    with pytest.raises(processes.Refused) as refused:
        processes.find({"PMI_RANK": str(rank), "PMI_SIZE": "4", "MPI_LOCALRANKID": str(local)})
    line = refused.value.line
    assert line is None if begin is None else line.startswith(begin) and line.endswith('pip install -e ".[mpi]"')


def test_without_a_library_of_mpi_the_run_is_refused(monkeypatch, tmp_path):
    """mpi4py's wheels import without one, and then raise."""
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").touch()
    (tmp_path / "mpi4py" / "MPI.py").write_text("raise RuntimeError('cannot load MPI library')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "mpi4py"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(processes.Refused) as refused:
        processes.find(HYDRA | {"MPI_LOCALRANKID": "0"})
    assert "mpi4py cannot be imported (cannot load MPI library)" in refused.value.line
    for name in ("mpi4py", "mpi4py.MPI"):
        sys.modules.pop(name, None)


@pytest.fixture(autouse=True)
def _threads_are_no_processes(monkeypatch):
    monkeypatch.setattr(processes.rank_watch, "start", lambda ranks: None)
    monkeypatch.setattr(logging.getLogger("mixprec"), "setLevel", lambda level: None)


class Communicator:
    """Threads in place of processes."""

    def __init__(self, rank, size, shared):
        self.rank, self.size, self._shared = rank, size, shared

    def Dup(self):
        return self

    def allgather(self, value):
        places, barrier = self._shared
        places[self.rank] = value
        barrier.wait(10)
        found = [places[rank] for rank in range(self.size)]
        barrier.wait(10)
        return found

    gather = allgather

    def bcast(self, value):
        return self.allgather(value)[0]

    def Allreduce(self, array, largest, operation):
        largest[...] = max(self.allgather(array.copy()))

    def Reduce(self, array, total):
        total[...] = sum(self.allgather(array.copy()))

    def Bcast(self, array):
        array[...] = self.bcast(array.copy())


def each(size, function):
    """Returns what a function of :class:`~mixprec.distributed.processes.Together` returns on each of ``size`` ranks."""
    shared, results = ({}, threading.Barrier(size)), [None] * size

    def run(rank):
        mpi = types.SimpleNamespace(COMM_WORLD=Communicator(rank, size, shared), MAX="max")
        try:
            results[rank] = function(processes.Together(mpi))
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


FAILING = [
    ({0, 1, 2}, ["error: bad 0", None, None]),
    ({1}, [None, "rank 1: error: bad 1", None]),
    ({1, 2}, [None, "rank 1: error: bad 1", None]),
    ({0, 2}, ["rank 0: error: bad 0", None, None]),
]


@pytest.mark.parametrize(("failing", "lines"), FAILING)
def test_bad_input_of_some_ranks_ends_all_with_one_line(failing, lines):
    def load(ranks):
        with ranks.together():
            if ranks.rank in failing:
                raise DataError(f"bad {ranks.rank}")

    assert [found.line for found in each(3, load)] == lines


def test_what_only_rank_0_looks_at_is_known_to_all():
    assert each(3, lambda ranks: ranks.first(lambda: ranks.rank + 7)) == [7, 7, 7]
    lines = each(2, lambda ranks: ranks.first(int, "x") if ranks.rank else ranks.first(_refuse))
    assert [found.line for found in lines] == ["rank 0: error: no", None]


def _refuse():
    raise DataError("no")


def test_ranks_with_other_facts_are_refused():
    found = each(3, lambda ranks: ranks.compare({"a": 1, "b": 2 + (ranks.rank == 2)}))
    assert [each.line for each in found] == [
        "error: b is 2 on rank 0 and 3 on rank 2: all ranks must have the same",
        None,
        None,
    ]
    assert each(3, lambda ranks: ranks.compare({"a": 1})) == [None, None, None]


def test_a_flag_of_one_rank_is_seen_by_all():
    assert each(3, lambda ranks: (ranks.any(ranks.rank == 1), ranks.any(False))) == [(True, False)] * 3


def test_the_mean_loss_is_that_over_all_images():
    """Also where ranks have different numbers of images, or none."""
    random = np.random.RandomState(0)
    link = L.Linear(3, 1, initialW=random.randn(1, 3))
    x, t = random.randn(11, 3).astype(np.float32), random.randint(0, 2, 11).astype(np.int32)
    t[[4, 5]] = -1

    def lossfun(x, t):
        return chainer.functions.sum((link(x)[:, 0] * (t >= 0)) ** 2) / max(1, (t >= 0).sum())

    def gradient(losses):
        link.cleargrads()
        for loss in losses:
            loss.backward()
        return link.W.grad.copy()

    shares = [[slice(0, 3), slice(3, 4)], [slice(4, 6)], [slice(6, 11)]]
    images = np.array(9 / 3, np.float32)
    parts = [gradient(Accumulated(lossfun)([(x[p], t[p]) for p in share], images)) for share in shares]
    expected = gradient(Accumulated(lossfun)([(x, t)]))
    np.testing.assert_allclose(np.mean(parts, axis=0), expected, rtol=1e-5)


def test_evaluation_is_the_mean_over_the_images_of_all_ranks():
    class Mean(chainer.Chain):
        def forward(self, x, t):
            chainer.report({"value": x[t >= 0].mean() if (t >= 0).any() else np.float32(0)}, self)

    values = np.arange(7, dtype=np.float32) ** 2
    parts = [[(values[:4], np.arange(4))], [(values[4:], np.arange(3))], [(values[:1], np.array([-1]))]]

    def evaluate(ranks):
        class Batches(chainer.dataset.Iterator):
            def reset(self):
                self._left = iter(parts[ranks.rank])

            def __next__(self):
                return next(self._left)

        model = Mean()
        evaluator = Evaluator(Batches(), model, converter=lambda batch, device: batch, gather=ranks.gather)
        evaluator.name = "validation"
        with chainer.reporter.Reporter().scope({}):
            reporter = chainer.reporter.Reporter()
            reporter.add_observer("main", model)
            with reporter:
                return evaluator.evaluate()

    found = each(3, evaluate)
    assert found[0] == found[1] == found[2] == {"main/value": pytest.approx(values.mean(), rel=1e-6)}


def test_statistics_are_averaged_and_then_as_before():
    def run(ranks):
        link = L.BatchNormalization(3)
        link.avg_mean[...] = [ranks.rank, 0.1, -ranks.rank]
        link.avg_var[...] = np.float32(0.3)  # equal ones stay, bit for bit
        before = [array.copy() for array in (link.avg_mean, link.avg_var)]
        with rank_states.RankStates(ranks).averaged(list(rank_states.statistics(link).values())):
            inside = [array.tolist() for array in (link.avg_mean, link.avg_var)]
        assert all(map(np.array_equal, before, (link.avg_mean, link.avg_var)))
        return inside

    expected = [np.float32([1, 0.1, -1]).tolist(), np.float32([0.3] * 3).tolist()]
    assert each(3, run) == [expected] * 3


PLACE = "updater/iterator:main/"


@pytest.fixture
def config(tmp_path):
    (tmp_path / "c.yaml").write_text(
        "model: {arch: resnet8, classes: 3}\ndata: {format: synthetic, synthetic_images: 48, size: 8}\n"
        "optimizer: {lr: 0.1}\ntraining: {batch_size: 4, epochs: 9}\nsnapshot: {best: false}\n"
    )
    path = str(tmp_path / "c.yaml")
    return lambda batch, *settings: configs.load(path, [f"training.batch_size={batch}", *settings], choices={})


def _moved(config, delivered, then, now, batch_then=4, batch_now=4, rank=0):
    """The position of a run with another number of ranks; ``then`` and ``now`` are numbers of ranks."""
    settings = {"batch_size": batch_then, "shard": 0, "num_shards": then, "seed": 3}
    arrays = {
        f"{PLACE}delivered": np.array(delivered),
        f"{PLACE}settings": np.frombuffer(json.dumps(settings).encode(), np.uint8),
        f"{PLACE}state": np.ones(5, np.uint8),
        "updater/optimizer:main/mixprec/dropout_state0": np.array(5),
        "extensions/ranks/number": np.array(then),
        "extensions/ranks/1/updater/optimizer:main/mixprec/dropout_state0": np.array(6),
        "extensions/ranks/1/updater/iterator:main/state": np.full(5, 2, np.uint8),
    }
    iterator = types.SimpleNamespace(
        serialize=lambda serializer: serializer(
            "settings",
            np.frombuffer(json.dumps({"batch_size": batch_now, "shard": rank, "num_shards": now}).encode(), np.uint8),
        )
    )
    ranks = types.SimpleNamespace(rank=rank, size=now)
    return rank_states.own(arrays, config(batch_now), 48, ranks, iterator, "s.npz")


RESUMED = [
    (12, 2, 1, 4, 24),  # the end of the second epoch of 6 batches
    (12, 2, 4, 4, 6),
    (13, 2, 1, 4, 26),
    (13, 2, 1, 8, 13),  # as many images in a step
    (14, 2, 4, 4, 7),
    (13, 2, 4, 4, None),
    (13, 2, 3, 4, None),
    (15, 2, 3, 4, 10),
]


@pytest.mark.parametrize(("delivered", "then", "now", "batch_now", "place"), RESUMED)
def test_another_number_of_ranks_goes_on_at_the_same_image(config, delivered, then, now, batch_now, place):
    if place is None:
        with pytest.raises(snapshots.SnapshotError, match=f"s.npz: of {then} ranks with 4 images each, after"):
            _moved(config, delivered, then, now, batch_now=batch_now)
        return
    arrays = _moved(config, delivered, then, now, batch_now=batch_now)
    assert arrays[f"{PLACE}delivered"] == place
    assert arrays[f"{PLACE}state"].size == 0
    settings = json.loads(arrays[f"{PLACE}settings"].tobytes())
    assert settings == {"batch_size": batch_now, "shard": 0, "num_shards": now, "seed": 3}
    assert not [name for name in arrays if name.startswith("extensions/ranks/")]


@pytest.mark.parametrize("delivered", [0, 5, 12, 13, 15, 18, 21, 27])
def test_another_number_of_ranks_goes_on_in_the_stage_of_the_image(config, delivered):
    """48 images and 2 ranks: an epoch of 12 batches, two of 3, then of 6; one rank has other batches in the second."""
    stages = ["progressive.until=[1, 3]", "progressive.sizes=[16, 8]"]
    old, new = (
        config(4, *stages, "progressive.batch_sizes=[2, 8]"),
        config(4, *stages, "progressive.batch_sizes=[2, 4]"),
    )
    before = images.train_iterator(old, range(48), "@numpy", rank=0, ranks=2)
    before.skip_to(delivered)
    arrays = {
        f"{PLACE}delivered": np.array(delivered),
        "extensions/settings/config": np.frombuffer(json.dumps(configs.flat(old)).encode(), np.uint8),
        "extensions/ranks/number": np.array(2),
    }
    after = images.train_iterator(new, range(48), "@numpy")
    moved = rank_states.own(arrays, new, 48, types.SimpleNamespace(rank=0, size=1), after, "s.npz")
    after.skip_to(int(moved[f"{PLACE}delivered"]))
    assert after.epoch_detail == before.epoch_detail


def test_each_rank_goes_on_with_its_own_random_numbers(config):
    name = "updater/optimizer:main/mixprec/dropout_state0"
    assert [_moved(config, 12, 2, 4, rank=rank).get(name) for rank in range(4)] == [5, 6, None, None]
    same = [_moved(config, 13, 2, 2, rank=rank) for rank in range(2)]
    assert [arrays[name] for arrays in same] == [5, 6]
    assert [arrays[f"{PLACE}state"][0] for arrays in same] == [1, 2]


ADDRESSES = [
    ("auto", ["01", "02", "03", "04"], None),
    ("gpu", ["01", "02", "03", "03"], "error: 'training.device' is 'gpu': ranks 2 and 3 have the same GPU"),
    ("gpu:0", ["01", "01"], "the same GPU, 01; start as many ranks on a machine as it has GPUs, with 'auto' or"),
    ("auto", [None, None], None),
    ("auto", ["01", None], "error: the device is @cupy on rank 0 and @numpy on rank 1: all ranks must have the"),
    ("gpu", ["01", "none"], "rank 1: error: 'training.device' is 'gpu', but no GPU"),
]


@pytest.mark.parametrize(("wanted", "addresses", "line"), ADDRESSES)
def test_each_rank_has_a_gpu_for_itself(config, monkeypatch, wanted, addresses, line):
    """Or none has one; what is wrong ends all of them."""

    def resolve(wanted, local_rank):
        place = addresses[local_rank]
        if place == "none":
            raise ValueError("device: found 'gpu', but no GPU")
        return "@numpy" if place is None else f"@cupy:{local_rank}", "why"

    monkeypatch.setattr(devices.gpus, "resolve_device", resolve)
    monkeypatch.setattr(devices.gpus, "address_of", lambda device: addresses[int(device[-1])])
    settings = config(4, f"training.device={wanted}")
    found = each(len(addresses), lambda ranks: devices.choose(settings, ranks))
    if line is None:
        assert [device for device, _ in found] == [f"@cupy:{n}" if a else "@numpy" for n, a in enumerate(addresses)]
    else:
        assert line in "".join(refused.line or "" for refused in found)
        assert sum(refused.line is not None for refused in found) == 1


def test_too_few_images_for_all_ranks(config):
    assert len(images.open_sources(config(12), 4)[0]) == 48
    with pytest.raises(DataError, match=r"48 images, but .* is 12 for each of 5 ranks"):
        images.open_sources(config(12), 5)

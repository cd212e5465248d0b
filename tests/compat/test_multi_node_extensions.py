"""ChainerMN's extensions, iterators and data sets with the wrapper, in two processes."""

import pytest

from tests import mpi
from tests.cases import first

pytestmark = pytest.mark.slow

_TRAINING = """
    import tempfile
    import chainer.functions as F
    import chainer.links as L
    from chainer.training import StandardUpdater, Trainer, extensions

    random = np.random.RandomState(0)
    images = random.normal(size=(48, 4)).astype("f")
    labels = (images.sum(1) > 0).astype("i")
    dataset = chainer.datasets.TupleDataset(images, labels)
    SerialIterator = chainer.iterators.SerialIterator

    def optimized(around=False):  # the wrapper with a communicator, or ChainerMN's optimizer around one
        np.random.seed(rank)  # other weights on each process: setup, or the first update, sends those of the first
        model = L.Classifier(chainer.Sequential(L.Linear(4, 8), L.BatchNormalization(8), F.relu, L.Linear(8, 2)))
        mixprec.convert(model)
        own = None if around else communicator
        optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.MomentumSGD(0.1), communicator=own)
        if around:
            optimizer = chainermn.create_multi_node_optimizer(optimizer, communicator)
        return optimizer.setup(model)

    def arrays(optimizer):
        model = optimizer.target
        norm = model.predictor[1]
        found = {name: optimizer.master(param).array.copy() for name, param in model.namedparams()}
        return {**found, "mean": norm.avg_mean.copy(), "var": norm.avg_var.copy()}

    def check_equal(found, expected):
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array, err_msg=name)

    def check_equal_everywhere(found):
        for each in communicator.mpi_comm.allgather(found):
            check_equal(each, found)

    def folder():
        return communicator.bcast_obj(tempfile.mkdtemp() if rank == 0 else None)
"""

_TRAINER = """
    def trainer_in(out, epochs, around=False):
        optimizer = optimized(around)
        data = chainermn.scatter_dataset(dataset if rank == 0 else None, communicator, shuffle=True, seed=0)
        assert len(data) == 24
        trainer = Trainer(StandardUpdater(SerialIterator(data, 6), optimizer), (epochs, "epoch"), out=out)
        evaluator = extensions.Evaluator(SerialIterator(data, 6, repeat=False, shuffle=False), optimizer.target)
        trainer.extend(chainermn.create_multi_node_evaluator(evaluator, communicator))
        trainer.extend(chainermn.extensions.AllreducePersistent(optimizer.target, communicator))
        return trainer, optimizer
"""


@pytest.mark.parametrize(("replica_sets", "around"), first(0, [([], True), ([0], False)], 1))
def test_a_trainer_with_snapshots(replica_sets, around):
    """Data, evaluation, running statistics and files: one for both processes, or one for each."""
    code = f"""
        def built(out, epochs):
            trainer, optimizer = trainer_in(out, epochs, {around})
            if rank == 0 and {replica_sets} == [0]:
                trainer.extend(extensions.LogReport())
            file = extensions.snapshot(filename="snapshot_{{.updater.iteration}}", autoload=True)
            trainer.extend(
                chainermn.extensions.multi_node_snapshot(communicator, file, {replica_sets}),
                trigger=(1, "epoch"),
                priority=-100,
            )
            notes = []
            @chainer.training.make_extension(trigger=(1, "epoch"), priority=-101)
            def note(trainer):
                notes.append((trainer.updater.iteration, optimizer.t, optimizer.loss_scale, arrays(optimizer)))
            note.initialize = note
            trainer.extend(note)
            return trainer, notes

        out = folder()
        trainer, notes = built(out, 2)
        trainer.run()
        accuracy = float(trainer.observation["validation/main/accuracy"])
        assert len(set(communicator.mpi_comm.allgather(accuracy))) == 1

        again, notes_again = built(out, 3)
        again.run()
        saved, loaded, last = notes[-1], notes_again[0], notes_again[-1]
        assert saved[:3] == loaded[:3] and saved[0] == 8
        check_equal(loaded[3], saved[3])
        assert last[0] == 12
        for each in (saved, last):
            check_equal_everywhere(each[3])
        # With a file for each process, and no batch dropped, the run is the one that was not interrupted.
        if {replica_sets} == [0] and not {around}:
            trainer, notes = built(folder(), 3)
            trainer.run()
            assert notes[-1][:3] == last[:3]
            check_equal(last[3], notes[-1][3])
        say("right")
    """
    assert mpi.run(2, mpi.COMMUNICATOR, _TRAINING, _TRAINER, code) == ["right"] * 2


def test_the_checkpointer():
    """Each process saves and loads a file of its own."""
    code = """
        warnings.filterwarnings("ignore", message="Checkpointer is deprecated")
        out = folder()
        trainer, optimizer = trainer_in(out, 1)
        trainer.run()
        chainermn.create_multi_node_checkpointer("run", communicator, path=out).save(trainer, 4)
        communicator.mpi_comm.Barrier()
        again, resumed = trainer_in(out, 2)
        chainermn.create_multi_node_checkpointer("run", communicator, path=out).maybe_load(again, resumed)
        check_equal(arrays(resumed), arrays(optimizer))
        assert (again.updater.iteration, resumed.t, resumed.loss_scale) == (4, optimizer.t, optimizer.loss_scale)
        again.run()
        check_equal_everywhere(arrays(resumed))
        say("right")
    """
    assert mpi.run(2, mpi.COMMUNICATOR, _TRAINING, _TRAINER, code) == ["right"] * 2


def test_iterators_that_give_all_processes_the_same_batches():
    """The step is then that of one process."""
    code = """
        def shared():
            mine = SerialIterator(dataset, 6) if rank == 0 else None
            return chainermn.iterators.create_multi_node_iterator(mine, communicator)

        def synchronized():
            return chainermn.iterators.create_synchronized_iterator(SerialIterator(dataset, 6), communicator)

        for make, around in ((shared, True), (synchronized, True), (shared, False), (synchronized, False)):
            iterator, optimizer = make(), optimized(around)
            batches = []
            def converter(batch, device):
                batches.append(chainer.dataset.concat_examples(batch))
                return batches[-1]
            updater = StandardUpdater(iterator, optimizer, converter=converter)
            for _ in range(10):
                updater.update()
            assert (updater.epoch, optimizer.t + optimizer.skipped) == (1, 10 - around)
            for x, t in zip(*communicator.mpi_comm.allgather(batches)):
                np.testing.assert_array_equal(x[0], t[0])
                np.testing.assert_array_equal(x[1], t[1])
            optimizer.target.predictor[1].avg_mean[...] = optimizer.target.predictor[1].avg_var[...] = 0
            check_equal_everywhere(arrays(optimizer))  # but the statistics of the first update, with other weights
        say("right")
    """
    assert mpi.run(2, mpi.COMMUNICATOR, _TRAINING, code) == ["right"] * 2


def test_an_exception_on_one_process_ends_all():
    """By ChainerMN's hook, without ``-m mpi4py``: the other process waits for a mean that does not come."""
    code = """
        chainermn.global_except_hook.add_hook()
        optimizer = optimized(around=True)
        for step in range(3):
            if step == 2 and rank == 1:
                raise ValueError("a batch that is bad")
            optimizer.update(optimizer.target, images[:6], labels[:6])
        say("not reached")
    """
    done = mpi.start(2, code=(mpi.COMMUNICATOR, _TRAINING, code))
    assert done.returncode != 0
    assert "ValueError: a batch that is bad" in done.stderr
    assert "not reached" not in done.stdout

"""Habits of programs around Chainer's Trainer: extensions, snapshots, schedules, updaters and reports."""

import io
import tempfile

import chainer
import chainer.functions as F
import chainer.links as L
from chainer import optimizers, serializers, training
from chainer.training import extensions, triggers

from tests.habits.parts import mlp
from tests.habits.running import T, X, habit

DATA = chainer.datasets.TupleDataset(X, T)


class Updater(training.updaters.StandardUpdater):
    """Overrides ``update_core``, as the examples of GANs do."""

    def update_core(self):
        optimizer = self.get_optimizer("main")
        x, t = self.converter(self.get_iterator("main").next(), self.device)

        def loss():
            y = optimizer.target.predictor(x)
            found = F.softmax_cross_entropy(y, t)
            chainer.report({"own": found, "accuracy": F.accuracy(y, t)}, optimizer.target)
            return found

        optimizer.update(loss)


def _trainer(run, folder, rule=None, updater=training.StandardUpdater, stop=(3, "epoch")):
    model = L.Classifier(mlp())
    optimizer = run.setup(rule or optimizers.MomentumSGD(0.1), model)
    iterator = chainer.iterators.SerialIterator(DATA, 2, shuffle=False)
    trainer = training.Trainer(updater(iterator, optimizer), stop, out=folder)
    trainer.extend(extensions.LogReport(trigger=(1, "epoch")))
    return trainer


def _evaluator(model):
    return extensions.Evaluator(chainer.iterators.SerialIterator(DATA, 3, repeat=False, shuffle=False), model)


def _log(trainer, *keys):
    return [[entry[key] for key in keys] for entry in trainer.get_extension("LogReport").log]


@habit()
def a_dozen_extensions(run):
    with tempfile.TemporaryDirectory() as folder:
        trainer = _trainer(run, folder)
        model = trainer.updater.get_optimizer("main").target
        keys = ["main/loss", "main/accuracy", "validation/main/loss", "validation/main/accuracy", "lr", "half"]
        trainer.extend(_evaluator(model))
        trainer.extend(extensions.observe_lr())
        trainer.extend(extensions.observe_value("half", lambda trainer: trainer.updater.iteration / 2))
        trainer.extend(extensions.PrintReport(keys, out=io.StringIO()))
        trainer.extend(extensions.ProgressBar(update_interval=1, out=io.StringIO()))
        trainer.extend(extensions.DumpGraph("main/loss"))
        trainer.extend(extensions.FailOnNonNumber())
        trainer.extend(extensions.ExponentialShift("lr", 0.5), trigger=(1, "epoch"))
        trainer.extend(extensions.snapshot(filename="last"), trigger=(1, "epoch"))
        best = triggers.MaxValueTrigger("validation/main/accuracy", (1, "epoch"))
        trainer.extend(extensions.snapshot_object(model.predictor, "best"), trigger=best)
        trainer.extend(extensions.unchain_variables())
        trainer.run()
        loaded = mlp()
        serializers.load_npz(f"{folder}/best", loaded)
        return [_log(trainer, *keys), loaded(X)]


@habit()
def a_run_that_is_resumed(run):
    with tempfile.TemporaryDirectory() as folder:
        first = _trainer(run, folder)
        first.extend(extensions.snapshot(filename="middle"), trigger=triggers.ManualScheduleTrigger(4, "iteration"))
        first.run()
        second = _trainer(run, folder)
        serializers.load_npz(f"{folder}/middle", second)
        second.run()
    return [_log(first, "main/loss"), _log(second, "main/loss")]


@habit()
def schedules_of_the_learning_rate(run):
    shifts = [
        extensions.LinearShift("lr", (0.1, 0.02), (0, 4)),
        extensions.MultistepShift("lr", 0.5, [2, 4], init=0.1),
        extensions.InverseShift("lr", 0.5, 1, init=0.1),
        extensions.PolynomialShift("lr", 2, 10, init=0.1),
        extensions.WarmupShift("lr", 0.01, 4, 0.1),
        extensions.StepShift("lr", 0.5, 2, init=0.1),
    ]
    logs = []
    for shift in shifts:
        with tempfile.TemporaryDirectory() as folder:
            trainer = _trainer(run, folder, stop=(4, "iteration"))
            trainer.extend(shift, trigger=(1, "iteration"))
            trainer.extend(extensions.observe_lr())
            trainer.run()
            logs.append(_log(trainer, "main/loss", "lr"))
    return logs


@habit()
def a_run_that_stops_early(run):
    with tempfile.TemporaryDirectory() as folder:
        options = {"monitor": "main/loss", "patients": 1, "mode": "max", "max_trigger": (5, "epoch")}
        trainer = _trainer(run, folder, stop=triggers.EarlyStoppingTrigger((1, "epoch"), **options))
        trainer.run()
        return [_log(trainer, "main/loss"), trainer.updater.epoch]


@habit()
def an_updater_of_ones_own(run):
    with tempfile.TemporaryDirectory() as folder:
        trainer = _trainer(run, folder, updater=Updater)
        trainer.run()
        return _log(trainer, "main/own", "main/accuracy")


@habit()
def an_evaluator_of_ones_own(run):
    class Evaluator(extensions.Evaluator):
        def evaluate(self):
            model, summary = self.get_target("main"), chainer.DictSummary()
            for x, t in DATA:
                with chainer.no_backprop_mode():
                    y = model.predictor(x[None])
                summary.add({"mine/loss": F.softmax_cross_entropy(y, t[None]), "mine/best": F.max(y)})
            return summary.compute_mean()

    with tempfile.TemporaryDirectory() as folder:
        trainer = _trainer(run, folder)
        model = trainer.updater.get_optimizer("main").target
        trainer.extend(Evaluator(chainer.iterators.SerialIterator(DATA, 1, repeat=False), model))
        trainer.run()
        return _log(trainer, "mine/loss", "mine/best")

"""The moving average of the weights: against float64, against torch, skipped steps, snapshots, evaluation, graphs."""

import chainer
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers, serializers, training
from hypothesis import given, settings
from hypothesis import strategies as st

import mixprec
from mixprec.app.parts.model import ImageClassifier
from mixprec.optimizer import moving_average
from mixprec.optimizer.moving_average import MovingAverage
from mixprec.training.averaging import WeightAverage, averaged_weights
from mixprec.training.evaluation import Evaluator
from mixprec.training.updater import TimedUpdater
from tests.cases import tries
from tests.graph_capture.captured_runs import FIRST_REPLAY, POISONED, REQUIRED, Run, batch
from tests.stand_ins import device_stand_in
from tests.stand_ins.capture_sides import device, gpu, gpu_of_module, host, side  # noqa: F401  (fixtures)
from tests.stand_ins.cuda_sides import both_sides
from tests.stand_ins.host_launch import HostLauncher

# The arithmetic


@given(
    st.lists(st.tuples(st.integers(1, 30), st.booleans()), min_size=1, max_size=4),
    st.lists(st.booleans(), min_size=1, max_size=30),
    st.floats(0.01, 0.9999),
    st.integers(0, 2**31),
)
def test_averages_are_those_of_float64(kinds, skipped, decay, seed):
    random = np.random.RandomState(seed)
    arrays = {}
    for number, (size, turned) in enumerate(kinds):
        array = random.normal(size=(3, size)).astype(np.float32)
        arrays[str(number)] = array.T if turned else array
    average = MovingAverage(decay)
    average.follow(arrays)
    expected, largest, steps = {name: array.astype(np.float64) for name, array in arrays.items()}, 1.0, 0
    for skip in skipped:
        for array in arrays.values():
            array += random.normal(size=array.shape).astype(np.float32)
            largest = max(largest, np.abs(array).max())
        average.update(np.bool_(skip))
        if not skip:
            d = min(decay, (1 + steps) / (10 + steps))
            steps += 1
            for name, array in arrays.items():
                expected[name] = d * expected[name] + (1 - d) * array
    assert average.steps == steps
    for name, value in expected.items():
        assert average.averages[name].dtype == np.float32
        # Each step rounds three times; what it rounds is no larger than twice the largest value.
        np.testing.assert_allclose(average.averages[name], value, rtol=0, atol=8 * len(skipped) * largest * 2.0**-24)


def test_an_average_of_a_run_that_diverges_gives_no_warning():
    """The run itself says in one line that it has diverged."""
    value = np.ones(2, np.float32)
    average = MovingAverage(0.9)
    average.follow({"variance": value})
    for number in (3e38, -3e38, np.inf, np.inf):
        value[0] = number
        average.update(np.bool_(False))
    assert not np.isfinite(average.averages["variance"][0])
    assert average.averages["variance"][1] == 1


def test_without_the_first_steps_it_is_the_average_of_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed: it comes with Python 3.11 only")
    random = np.random.RandomState(0)
    model = torch.nn.Linear(4, 3)
    reference = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.95)
    )
    weight = np.zeros((3, 4), np.float32)
    average = MovingAverage(0.95)
    average.follow({"W": weight})
    average.load({"W": weight}, 1000)
    for step in range(20):
        weight[...] = random.normal(size=weight.shape)
        if step == 0:
            average.load({"W": weight}, 1000)
        average.update(np.False_)
        with torch.no_grad():
            model.weight[...] = torch.from_numpy(weight)
        reference.update_parameters(model)
    np.testing.assert_allclose(
        average.averages["W"], reference.module.weight.detach().numpy(), rtol=0, atol=64 * 2.0**-24
    )


@pytest.fixture(scope="module")
def launcher():
    return HostLauncher()


@given(
    st.lists(st.tuples(st.integers(0, 9000), st.integers(1, 3), st.booleans()), min_size=1, max_size=4),
    st.lists(st.booleans(), min_size=1, max_size=5),
    st.sampled_from([0.5, 0.99, 0.9999]),
)
@settings(max_examples=tries(25))
def test_a_device_has_the_bits_of_numpy_by_two_launches(launcher, kinds, skipped, decay):
    """Arrays of several blocks, in any order of axes; whether a step counts is not read."""
    random = np.random.RandomState(len(kinds))
    host, there = {}, {}  # noqa: F811
    for number, (size, width, turned) in enumerate(kinds):
        array = random.normal(size=(size, width)).astype(np.float32)
        on_device = device_stand_in.array(array)
        host[str(number)], there[str(number)] = (array.T, on_device.T) if turned else (array, on_device)
    averages = []
    with pytest.MonkeyPatch.context() as patch:
        for arrays, of in ((host, None), (there, launcher)):
            patch.setattr(moving_average, "launcher_of", lambda array, of=of: of)
            average = MovingAverage(decay)
            average.follow(arrays)
            averages.append(average)
            random = np.random.RandomState(1)
            for skip in skipped:
                for array in arrays.values():
                    array += random.normal(size=array.shape).astype(np.float32)
                launcher.launches.clear()
                reads = device_stand_in.DeviceArray.reads
                flag = np.bool_(skip) if of is None else device_stand_in.array(np.array(skip))
                average.update(flag)
                assert device_stand_in.DeviceArray.reads == reads
                if of is not None:
                    assert len(launcher.launches) == (2 if any(array.size for array in arrays.values()) else 1)
    assert averages[0].steps == averages[1].steps == skipped.count(False)
    for name, value in averages[0].averages.items():
        assert np.asarray(averages[1].averages[name]).tobytes() == value.tobytes()


def test_an_array_that_is_new_begins_with_its_value_and_others_go_on():
    a, b = np.zeros(2, np.float32), np.full(3, 5, np.float32)
    average = MovingAverage(0.5)
    average.follow({"a": a})
    a += 1
    average.update(np.False_)
    kept = average.averages["a"].copy()
    assert kept == pytest.approx(0.9)
    average.follow({"a": a.copy(), "b": b})
    np.testing.assert_array_equal(average.averages["a"], kept)
    np.testing.assert_array_equal(average.averages["b"], b)


# In training


class Net(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(3, 4, 3, pad=1, nobias=True)
            self.norm = L.BatchNormalization(4)
            self.out = L.Linear(4, 6)

    def forward(self, x):
        return self.out(chainer.functions.average_pooling_2d(self.norm(self.conv(x)), x.shape[2:]).reshape(-1, 4))


def _images(seed, size):
    random = np.random.RandomState(seed)
    return random.normal(size=(size, 3, 6, 6)).astype(np.float32), random.randint(0, 6, size).astype(np.int32)


def _optimizer(compute="float16"):
    np.random.seed(0)
    model = ImageClassifier(Net())
    mixprec.convert(model, np.zeros((2, 3, 6, 6), np.float32), compute=compute)
    scale = mixprec.DynamicLossScale(init=2.0**8)
    return mixprec.MixedPrecisionOptimizer(optimizers.MomentumSGD(0.1), scale).setup(model)


def _values(optimizer):
    """Masters and statistics, copies by name."""
    model = optimizer.target
    norm = model.predictor.norm
    found = {name: optimizer.master(param).array.copy() for name, param in model.namedparams()}
    return found | {"avg_mean": norm.avg_mean.copy(), "avg_var": norm.avg_var.copy()}


def _bits(optimizer):
    """Everything that must be as it was, byte for byte."""
    model = optimizer.target
    return {
        **{name: value.tobytes() for name, value in _values(optimizer).items()},
        **{f"{name} in its dtype": param.array.tobytes() for name, param in model.namedparams()},
        "N": model.predictor.norm.N,
    }


@pytest.mark.parametrize("compute", ["float16", "float32"])
def test_masters_and_statistics_are_averaged_and_skipped_steps_do_not_count(compute):
    optimizer = _optimizer(compute)
    extension = WeightAverage(optimizer, 0.9)
    extension.initialize(None)
    expected, steps = {name: value.astype(np.float64) for name, value in _values(optimizer).items()}, 0
    for number in range(8):
        x, t = _images(number, 4)
        if number in (0, 3):
            x[0, 0, 0, 0] = np.inf
        optimizer.update(optimizer.target, x, t)
        extension(None)
        if number not in (0, 3):
            d = min(0.9, (1 + steps) / (10 + steps))
            steps += 1
            for name, value in _values(optimizer).items():
                expected[name] = d * expected[name] + (1 - d) * value
    before = _bits(optimizer)
    with extension.applied():
        for name, value in _values(optimizer).items():
            np.testing.assert_allclose(value, expected[name], rtol=0, atol=64 * 2.0**-24 * np.abs(expected[name]).max())
        for name, param in optimizer.target.namedparams():
            np.testing.assert_array_equal(param.array, _values(optimizer)[name].astype(param.dtype))
    assert optimizer.skipped == 2
    assert _bits(optimizer) == before


def test_what_was_written_into_a_parameter_is_still_there_after_the_average_was_applied():
    """It has not reached its master yet; and an error in the evaluation changes nothing."""
    optimizer = _optimizer()
    extension = WeightAverage(optimizer, 0.9)
    extension.initialize(None)
    optimizer.update(optimizer.target, *_images(0, 4))
    extension(None)
    conv = optimizer.target.predictor.conv
    conv.W.array[0, 0, 0, 0] = 0.5
    written = conv.W.array.tobytes()

    def evaluate():
        with extension.applied():
            assert conv.W.array.tobytes() != written
            raise KeyError("in an evaluation")

    with pytest.raises(KeyError, match="in an evaluation"):
        evaluate()
    assert conv.W.array.tobytes() == written
    assert optimizer.master(conv.W).array[0, 0, 0, 0] == 0.5


def _trainer(out, epochs=2, average=True):
    optimizer = _optimizer()
    x, t = _images(1, 20)
    x[5, 0, 0, 0] = np.inf
    data = list(zip(x, t, strict=True))
    updater = TimedUpdater(chainer.iterators.SerialIterator(data, 4, shuffle=False), optimizer)
    trainer = training.Trainer(updater, (epochs, "epoch"), out=str(out))
    if average:
        trainer.extend(WeightAverage(optimizer, 0.9))
    evaluator = Evaluator(
        chainer.iterators.SerialIterator(data[8:], 4, repeat=False, shuffle=False),
        optimizer.target,
        weights=lambda: averaged_weights(trainer),
    )
    trainer.extend(evaluator, trigger=(3, "iteration"))
    trainer.extend(training.extensions.LogReport(trigger=(3, "iteration"), log_name=None))
    trainer.extend(training.extensions.snapshot(filename="{.updater.iteration}.npz"), trigger=(1, "iteration"))
    return trainer


def test_the_average_is_evaluated_and_training_goes_on_as_without_it(tmp_path):
    with_average, without = (_trainer(tmp_path / str(average), average=average) for average in (True, False))
    for trainer in (with_average, without):
        trainer.run()
    assert _bits(with_average.updater.get_optimizer("main")) == _bits(without.updater.get_optimizer("main"))
    logs = [trainer.get_extension("LogReport").log for trainer in (with_average, without)]
    for one, other in zip(*logs, strict=True):
        assert repr(one["main/loss"]) == repr(other["main/loss"])  # one of a skipped step is NaN
        assert one["validation/main/loss"] != other["validation/main/loss"]
    optimizer = with_average.updater.get_optimizer("main")
    with averaged_weights(with_average), chainer.using_config("train", False):
        x, t = _images(1, 20)
        loss = optimizer.target(x[8:], t[8:])
    last = with_average.get_extension("validation")()["validation/main/loss"]
    assert float(loss.array) == pytest.approx(last, rel=1e-5)


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path):
    """Every array of the last snapshot, the averages among them; the second step overflows."""
    _trainer(tmp_path / "whole").run()
    resumed = _trainer(tmp_path / "resumed")
    serializers.load_npz(tmp_path / "whole" / "4.npz", resumed)
    resumed.run()
    files = []
    for name in ("whole", "resumed"):
        with np.load(tmp_path / name / "10.npz") as file:
            files.append({key: file[key].tobytes() for key in file.files if not key.endswith(("_log", "elapsed_time"))})
    assert files[0] == files[1]
    assert sum("extensions/average/" in name for name in files[0]) == 5 + 2 + 1  # parameters, statistics, steps


def test_it_begins_with_the_weights_that_training_begins_with(tmp_path):
    """Also if they were loaded after the trainer was built."""
    trainer = _trainer(tmp_path, epochs=1)
    model = trainer.updater.get_optimizer("main").target
    model.predictor.out.b.array[...] = 8
    trainer.get_extension("average").initialize(trainer)
    np.testing.assert_array_equal(trainer.get_extension("average")._average.averages["/predictor/out/b"], 8)


@pytest.mark.slow
@both_sides
def test_captured_training_is_averaged_without_a_read_and_evaluated_in_the_same_graph(side):  # noqa: F811
    """Steps and evaluations in graphs: the averages are those of eager steps, bit for bit."""
    found = []
    for capture in (REQUIRED, None):
        run = Run(capture, side=side)
        extension = WeightAverage(run.optimizer, 0.9)
        extension.initialize(None)
        for number in range(FIRST_REPLAY + 1):
            run.run([number])
            extension(None)
        batches = {number: tuple(map(side.send, batch(number))) for number in range(FIRST_REPLAY + 1, 10)}
        with side.without_reads():
            for number, arrays in batches.items():
                run.set_rate(number)
                run.once(*arrays)
                extension(None)
        evaluated = []
        evaluate = mixprec.graph_capture.capture_evaluation(run.model) if capture else run.model
        images = [side.send(array) for array in batch(100, 4)]
        for _ in range(4):
            for weights in (extension.applied, side.eagerly):
                with side.eagerly(), weights(), chainer.using_config("train", False), chainer.no_backprop_mode():
                    evaluated.append(run.evaluate(evaluate, *images)["returned"].tobytes())
        run.run([10])
        assert not capture or (run.step.replays, evaluate.replays) == (11 - FIRST_REPLAY, 8 - FIRST_REPLAY)
        averages = {name: side.receive(array).tobytes() for name, array in extension._average.averages.items()}
        found.append((averages, extension._average.steps, evaluated, run.results()["step 10 main/loss"].tobytes()))
    assert found[0] == found[1]
    assert found[0][1] == 10 - len(POISONED & set(range(10)))
    assert len(set(found[0][2])) == 2  # the averages, and the weights themselves

"""What users do around captured steps: each program ends with the bits of the same program run eagerly."""

import copy
import io
import logging
import random

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import serializers

import mixprec
from mixprec.graph_capture import CaptureError, capture_evaluation
from tests.cases import first
from tests.graph_capture.captured_runs import Run, assert_same
from tests.stand_ins import graph_array
from tests.stand_ins.capture_sides import device, host  # noqa: F401  (fixtures)

FIRST_REPLAY = 5
REQUIRED = {"required": True}


class Small(chainer.Chain):
    def __init__(self, dropout):
        super().__init__()
        self._dropout = dropout
        with self.init_scope():
            self.conv = L.Convolution2D(3, 8, 3, nobias=True)
            self.bn = L.BatchNormalization(8)
            self.fc = L.Linear(8, 10)

    def forward(self, x):
        h = F.relu(self.bn(self.conv(x)))
        h = F.reshape(F.average_pooling_2d(h, h.shape[2:]), (h.shape[0], -1))
        return self.fc(F.dropout(h, self._dropout) if self._dropout else h)


@pytest.fixture
def cuda(host, device, announced):  # noqa: F811
    return device


def batch(number, size=4, bad=False):
    random = np.random.RandomState(number)
    x = random.normal(size=(size, 3, 8, 8)).astype(np.float32)
    if bad:
        x[0, 0, 0, 0] = np.inf
    return graph_array.array(x), graph_array.array(random.randint(0, 10, size).astype(np.int32))


def feed(run, numbers, **settings):
    for number in numbers:
        run.once(*batch(number, **settings))


def beside_eager(program, wishes=REQUIRED, **settings):
    """Runs a program eagerly, then with captured steps; returns the captured run."""
    eager = Run(None, network=Small, **settings)
    program(eager)
    expected = eager.results()  # before another run forgets the state of dropout
    captured = Run(wishes, network=Small, **settings)
    program(captured)
    assert_same(captured, expected)
    return captured


# --- what belongs to a step before it begins


@pytest.mark.parametrize("overflows", first(1, ["in the next step", "in another shape"]))
def test_a_forward_pass_by_hand_is_a_part_of_the_next_step_only(overflows, cuda):
    """If that is skipped, statistics are as before the forward pass; if a later one is, they are not."""

    def program(run):
        feed(run, range(7))
        run.model(*batch(50))
        feed(run, [7], bad=overflows == "in the next step")
        feed(run, [8])
        feed(run, [9], size=2, bad=overflows == "in another shape")
        feed(run, [10])

    captured = beside_eager(program)
    assert captured.optimizer.skipped == 1
    assert captured.step.replays == 2 + 2


def test_a_forward_pass_by_hand_is_no_failure_of_the_comparison(cuda):
    """Skipped, a graph would bring back the statistics from after the forward pass."""

    def program(run):
        for number in range(12):
            if number in (1, 3, 5):
                run.model(*batch(50))
            feed(run, [number], bad=number in (3, 5))

    assert beside_eager(program).step.replays >= 3


def test_a_backward_pass_by_hand_that_no_step_used(cuda):
    """The scale that it had is not that of the next one."""

    def program(run):
        feed(run, range(7))
        run.optimizer.scale_loss(run.model(*batch(50))).backward()
        feed(run, range(7, 10), bad=True)
        run.model.cleargrads()
        run.optimizer.scale_loss(run.model(*batch(51))).backward()
        run.optimizer.update()
        feed(run, [10])

    assert beside_eager(program).step.replays >= 5


def test_a_variable_that_two_steps_use_keeps_its_graph():
    """As of a generator in the step of a discriminator. On NumPy a step is ``optimizer.update``."""
    found = []
    for capture in (None, {}):
        np.random.seed(0)
        first, second = L.Linear(3, 3), L.Linear(3, 1)
        optimizers = [mixprec.MixedPrecisionOptimizer(chainer.optimizers.SGD()).setup(x) for x in (first, second)]
        h = first(np.ones((2, 3), np.float32))

        def lossfun(h, second=second):
            return F.sum(F.square(second(h)))

        if capture is None:
            optimizers[1].update(lossfun, h)
        else:
            mixprec.capture(optimizers[1], lossfun)(h)
        optimizers[0].update(lossfun, h)
        found.append(first.W.array.copy())
    np.testing.assert_array_equal(*found)


# --- hyperparameters, hooks


def test_a_schedule_of_what_powers_are_of(cuda):
    """``t`` is settled in each step then, also in those that are compared."""

    def program(run):
        for number in range(10):
            run.optimizer.beta = 0.9 - 0.01 * number
            feed(run, [number])

    assert beside_eager(program, rule="MSVAG").step.replays == 10 - FIRST_REPLAY


class Counting(chainer.LinkHook):
    name = "Counting"

    def __init__(self):
        self.calls = 0

    def forward_postprocess(self, args):
        self.calls += 1


@pytest.mark.parametrize("added", [pytest.param(0, marks=pytest.mark.slow), 3, pytest.param(8, marks=pytest.mark.slow)])
def test_a_hook_of_a_link_is_not_left_out(added, cuda, caplog):
    def program(run):
        hook = Counting()
        for number in range(12):
            if number == added:
                run.model.predictor.fc.add_hook(hook)
            feed(run, [number])
        assert hook.calls >= 12 - added

    with caplog.at_level(logging.WARNING, "mixprec"):
        captured = beside_eager(program, wishes={})
    assert captured.step.why_not == "a graph would leave out the hook Counting of /predictor/fc"
    assert captured.step.replays == max(0, added - FIRST_REPLAY)
    with pytest.raises(CaptureError, match="Counting"):
        beside_eager(program)


# --- errors


ERRORS = [
    (KeyboardInterrupt, (3, 4), True),
    (ZeroDivisionError, (0, 1), False),
    (ZeroDivisionError, (1, 2, 3), True),
    (KeyboardInterrupt, (2,), False),
]


@pytest.mark.parametrize(("error", "when", "late"), first(1, ERRORS))
def test_errors_in_the_loss_function(error, when, late, cuda):
    """A step that is not done is no warm-up; those that are captured and compared begin anew."""

    def lossfun(model, x, t):
        if model.fails and not late:
            raise error
        loss = model(x, t)
        if model.fails:
            raise error
        return loss

    def program(run):
        for number in range(8):
            for run.model.fails in [True, False] if number in when else [False]:
                try:
                    feed(run, [number])
                except error:
                    assert run.model.fails

    captured = beside_eager(program, lossfun=lossfun, dropout=0.5)
    assert captured.step.replays == 8 - FIRST_REPLAY


@pytest.mark.parametrize("call", first(1, [2, 1]))
def test_an_interrupt_while_a_graph_captures(call, cuda):
    """The eager step before is done, and its gradients are there; the next calls capture again."""

    def lossfun(model, x, t):
        model.calls += 1
        loss = model(x, t)
        if model.calls == model.fails_at:
            raise KeyboardInterrupt
        return loss

    runs = []
    for wishes in (None, REQUIRED):
        run = Run(wishes, network=Small, lossfun=lossfun)
        run.model.calls, run.model.fails_at = 0, 3 + call if wishes else 4 if call == 1 else None
        for number in range(9):
            try:
                feed(run, [number])
            except KeyboardInterrupt:
                assert number == 3
                gradients = {name: param.grad.copy() for name, param in run.model.namedparams() if wishes and call == 2}
                assert all(np.isfinite(graph_array.receive(array)).all() for array in gradients.values())
        run.observed.clear()
        runs.append(run)
    assert_same(runs[1], runs[0])
    assert runs[1].step.replays == 9 - 4 - 2


# --- what is reported


def test_a_report_scope_in_the_step(cuda):
    """What is reported in it is nobody's business but the step's."""

    def lossfun(model, x, t):
        inner = {}
        with chainer.report_scope(inner):
            loss = model(x, t)
        chainer.report({"loss of the inside": inner["main/loss"]}, model)
        return loss

    captured = beside_eager(lambda run: feed(run, range(9)), lossfun=lossfun)
    assert captured.step.replays == 9 - FIRST_REPLAY
    assert set(captured.observed[-1]) == {"main/loss of the inside", "returned"}


@pytest.mark.parametrize("kind", first(1, [lambda x: chainer.Variable(np.array(x)), float]))
def test_a_number_of_the_host_that_is_reported(kind, cuda, caplog):
    """A graph would repeat it."""

    def lossfun(model, x, t):
        model.count += 1
        chainer.report({"count": kind(model.count)}, model)
        return model(x, t)

    run = Run({}, network=Small, lossfun=lossfun)
    run.model.count = 0
    with caplog.at_level(logging.WARNING, "mixprec"):
        feed(run, range(8))
    assert "the reported count has the number" in run.step.why_not
    counts = [float(chainer.as_array(observed["main/count"])) for observed in run.observed]
    assert counts == list(range(1, 9))


class Telling(Small):
    def forward(self, x):
        h = self.bn(self.conv(x))
        chainer.report({"mean": h}, self.bn)
        h = F.relu(h)
        return self.fc(F.reshape(F.average_pooling_2d(h, h.shape[2:]), (h.shape[0], -1)))


def test_a_reported_activation(cuda):
    """Which the model has deferred at that time."""
    expected = None
    for wishes in (None, REQUIRED):
        run = Run(wishes, network=Telling)
        run.reporter.add_observer("bn", run.model.predictor.bn)
        feed(run, range(8))
        if wishes is None:
            expected = run.results()
    assert run.step.replays == 8 - FIRST_REPLAY
    assert_same(run, expected)


# --- arguments


def test_a_variable_with_a_graph_as_argument(cuda, caplog):
    """The backward pass goes on behind it, and a graph would not."""

    def program(run):
        run.seen = []
        for number in range(7):
            x, t = batch(number)
            x = chainer.Variable(x)
            with cuda.graphs.on_stream():
                doubled = x * 2
            run.once(doubled, t)
            run.seen.append(graph_array.receive(x.grad))

    eager, captured = Run(None, network=Small), Run({}, network=Small)
    for run in (eager, captured):
        program(run)
    assert captured.step.why_not.startswith("an argument is a computed variable")
    np.testing.assert_array_equal(captured.seen, eager.seen)
    assert_same(captured, eager)


@pytest.mark.parametrize("value", first(1, [np.array(["a.jpg"] * 4), {1}]))
def test_what_no_device_has_as_argument(value, cuda):
    """Named, and the arrays of the host beside it go to the device all the same."""

    def lossfun(model, x, t, names):
        return model(x, t)

    def program(run):
        for number in range(3):
            arrays = batch(number)
            run.once(*map(graph_array.receive, arrays) if run.step else arrays, value)

    captured = beside_eager(program, {}, lossfun=lossfun)
    assert captured.step.why_not.startswith("an argument is a")


def test_containers_of_other_classes(cuda):
    """They arrive as what they are."""

    class Batch(dict):
        pass

    def lossfun(model, batch):
        assert type(batch) is Batch
        return model(batch["x"], batch["t"])

    def program(run):
        for number in range(8):
            run.once(Batch(zip("xt", batch(number), strict=True)))

    assert beside_eager(program, lossfun=lossfun).step.replays == 8 - FIRST_REPLAY


def test_parameters_that_come_late():
    """A model without any is asked where it is: on the host nothing can be captured."""
    for required in (False, True):
        model = L.Linear(None, 2)
        optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.SGD()).setup(model)
        step = mixprec.capture(optimizer, lambda x, model=model: F.sum(model(x)), required=required)
        if required:
            with pytest.raises(CaptureError, match="needs a CUDA device"):
                step(np.ones((1, 3), np.float32))
            assert optimizer.t == 0
        else:
            step(np.ones((1, 3), np.float32))
            assert optimizer.t == 1


@pytest.mark.slow
@pytest.mark.parametrize("what", ["graphs", "kinds"])
def test_what_goes_on_eagerly_for_want_of_room_is_said_once(what, cuda, caplog):
    def lossfun(model, x, t, number):
        return model(x, t) * (1 + number)

    run = Run({"warmup": 2, "graphs": 1}, network=Small, lossfun=lossfun)
    with caplog.at_level(logging.WARNING, "mixprec"):
        for number in range(40):
            run.once(*batch(number), number / 64 if what == "kinds" else (number // 5) % 2)
    (record,) = caplog.records
    assert {"graphs": "was dropped", "kinds": "many combinations of shapes"}[what] in record.getMessage()
    assert (run.step.replays == 0) == (what == "kinds")


# --- other models


@pytest.mark.slow
@pytest.mark.parametrize("moves", [True, False])
def test_a_link_that_does_not_belong_to_the_model(moves, cuda):
    """As the generator where a discriminator learns: its statistics move once a step, and it may be replaced."""

    def new_link():
        link = L.Classifier(Small(0))
        mixprec.convert(link, np.zeros((2, 3, 8, 8), np.float32))
        return graph_array.send(link)

    def lossfun(model, x, t):
        with chainer.no_backprop_mode():
            noise = model.others[0].predictor(x)
        return model(x, t) + 2.0**-4 * F.sum(noise * noise)

    def program(run):
        np.random.seed(5)
        run.model.others = [new_link()]
        for number in range(12):
            if moves and number == 7:
                bn = run.model.others[0].predictor.bn
                bn.avg_mean, bn.gamma.array = bn.avg_mean * 2, bn.gamma.array * 2
            feed(run, [number], bad=number == 6)
        bn = run.model.others[0].predictor.bn
        run.observed.append({"statistics": bn.avg_mean, "more": bn.avg_var})

    captured = beside_eager(program, lossfun=lossfun)
    assert captured.step.replays == (2 + 1 if moves else 12 - FIRST_REPLAY)


def test_hooks_of_links_in_an_evaluation(cuda, caplog):
    run, hook = Run(None, network=Small), Counting()
    evaluate = capture_evaluation(run.model)
    for number in range(8):
        evaluate(*batch(number))
    assert evaluate.replays == 3
    run.model.predictor.fc.add_hook(hook)
    for number in range(5):
        evaluate(*batch(number))
    assert evaluate.replays == 3
    assert hook.calls >= 5
    assert evaluate.why_not == "a graph would leave out the hook Counting of /predictor/fc"


@pytest.mark.slow
def test_a_kind_that_comes_rarely_does_not_end_the_others(cuda):
    """As the last batch of an epoch: something else is updated each time, which is no fault of the step."""

    def program(run):
        for epoch in range(6):
            feed(run, range(6 * epoch, 6 * epoch + 6))
            feed(run, [100 + epoch], size=2)
            if epoch % 2:
                run.optimizer.remove_hook("GradientClipping")
            else:
                run.optimizer.add_hook(chainer.optimizer_hooks.GradientClipping(0.5))

    captured = beside_eager(program)
    assert captured.step.why_not is None
    assert captured.step.replays >= 6


@pytest.mark.parametrize("when", first(1, [3, 7]))
def test_the_random_state_of_dropout_is_drawn_anew(when, cuda):
    """Also in the step that would be compared."""

    def program(run):
        for number in range(13):
            if number == when:
                np.random.seed(7)
                mixprec.functions.reset_dropout()
            feed(run, [number])

    assert beside_eager(program, dropout=0.5).step.replays >= 13 - FIRST_REPLAY - 5


@pytest.mark.slow
def test_what_is_updated_changes_in_each_step(cuda, caplog):
    """As with one optimizer for a generator and a discriminator, one of them frozen: that is said."""

    def program(run):
        for number in range(9):
            links = run.model.predictor.conv, run.model.predictor.fc
            links[number % 2].disable_update()
            links[1 - number % 2].enable_update()
            feed(run, [number])

    with caplog.at_level(logging.WARNING, "mixprec"):
        assert beside_eager(program).step.replays == 0
    (record,) = caplog.records
    assert record.getMessage().endswith("parameters, rules or hooks change in each step")


@pytest.mark.slow
def test_two_optimizers_of_one_model(cuda):
    """They share update rules, and one must know at once what the other did."""
    runs = []
    for wishes in (None, {}):
        run = Run(wishes, network=Small)
        feed(run, range(7))
        other = mixprec.MixedPrecisionOptimizer(chainer.optimizers.Adam()).setup(run.model)
        step = other.update if wishes is None else mixprec.capture(other)
        for number in range(7, 14):
            feed(run, [number])
            with cuda.graphs.on_stream():
                step(*(run.model,) * (wishes is None), *batch(number))
        runs.append(run)
    assert_same(runs[1], runs[0])
    assert runs[1].step.replays == 2
    for captured in (runs[1].step, step):
        assert captured.why_not == "another optimizer shares the update rules, and needs their t after every step"


def test_a_result_and_a_buffer_as_arguments(cuda):
    """What came out of one step goes into the next; also what the step keeps itself."""

    def lossfun(model, x, t, factor):
        model.x = x
        return model(x, t) + 0.25 * F.sum(factor * factor)

    def program(run):
        factor = graph_array.array(np.ones((), np.float32))
        x, t = batch(0)
        for _ in range(10):
            run.once(x, t, factor)
            x, factor = chainer.as_array(run.model.x), run.observed[-1]["returned"].array
            x[...] = x * 1.01

    assert beside_eager(program, lossfun=lossfun).step.replays == 10 - FIRST_REPLAY


# --- random programs


class Actions:
    """What users do between steps, each with two random numbers.

    Args:
        run: of which all of it is asked.
        wishes: arguments for capturing, or ``None``.
        graphs: of the device.
    """

    def __init__(self, run, wishes, graphs):
        self.run, self.model, self.optimizer, self.graphs = run, run.model, run.optimizer, graphs
        self.number, self.file, self.seen = 0, None, []
        self.second = Run.__new__(Run)  # another loss function for the same model
        vars(self.second).update(vars(run))
        self.second._lossfun = lambda x, t: 0.5 * run.model(x, t)
        captures = wishes is not None
        self.second.step = mixprec.capture(run.optimizer, self.second._lossfun, **wishes) if captures else None
        self.evaluate = capture_evaluation(run.model, **wishes) if captures else self.evaluate_eagerly

    def evaluate_eagerly(self, *arguments):
        with chainer.using_config("train", False), chainer.no_backprop_mode():
            return self.model(*arguments)

    def batch(self, a, b):
        self.number += 1
        return batch(self.number, 2 if a > 0.9 else 4, bad=b < 0.12)

    def steps(self, a, b):
        for _ in range(1 + int(7 * a)):
            self.run.once(*self.batch(b, a))

    def other_lossfun(self, a, b):
        for _ in range(6 if a < 0.5 else 1):
            self.second.once(*self.batch(0, b))
            self.run.once(*self.batch(0, 1))

    def step_in_test_mode(self, a, b):
        with chainer.using_config("train", False):
            self.run.once(*self.batch(a, b))

    def hooked_step(self, a, b):
        with chainer.function_hooks.TimerHook():
            self.run.once(*self.batch(a, b))

    def step_by_hand(self, a, b):
        with self.graphs.on_stream():
            loss = self.model(*self.batch(a, b))
            self.model.cleargrads()
            self.optimizer.scale_loss(loss).backward()
            self.optimizer.update()

    def backward_by_hand(self, a, b):
        with self.graphs.on_stream():
            self.optimizer.scale_loss(self.model(*self.batch(a, 1))).backward()
            if b < 0.5:
                self.optimizer.update()

    def forward_by_hand(self, a, b):
        with self.graphs.on_stream():
            self.model(*self.batch(a, b))

    def evaluations(self, a, b):
        for _ in range(1 + int(7 * b)):
            for evaluate in (self.evaluate, self.evaluate_eagerly):
                found = self.run.evaluate(evaluate, *self.batch(a, 1))
                self.seen.append({name: value.tobytes() for name, value in found.items()})

    def rate(self, a, b):
        setattr(self.optimizer, self.run._rate, self.run.first_rate * a)

    def hyperparameters(self, a, b):
        for name in ("momentum", "beta1", "beta", "alpha", "eps"):
            if hasattr(self.optimizer.hyperparam, name):
                setattr(self.optimizer, name, getattr(self.optimizer, name) * (0.9 + 0.1 * a))

    def hook(self, a, b):
        if a < 0.5:
            self.optimizer.add_hook(chainer.optimizer_hooks.GradientClipping(0.1 + b))
        else:
            self.optimizer.remove_hook("GradientClipping")

    def freeze(self, a, b):
        link = self.model.predictor.conv if a < 0.5 else self.model.predictor.bn
        link.disable_update() if b < 0.5 else link.enable_update()

    def own_rate(self, a, b):
        setattr(self.model.predictor.fc.W.update_rule.hyperparam, self.run._rate, self.run.first_rate * a)

    def save(self, a, b):
        self.file = io.BytesIO(), io.BytesIO()
        for file, what in zip(self.file, (self.model, self.optimizer), strict=True):
            serializers.save_npz(file, what)

    def load(self, a, b):
        for file, what in zip(self.file, (self.model, self.optimizer), strict=True):
            file.seek(0)
            serializers.load_npz(file, what)
        graph_array.send_states(self.model)

    def look(self, a, b):
        self.seen.append([getattr(self.optimizer, name) for name in ("t", "loss_scale", "skipped")])
        self.seen += [graph_array.receive(array).tobytes() for _, array in self.optimizer.unscaled_gradients()]

    def copy_all(self, a, b):
        copy.deepcopy(self.optimizer)

    def dropout(self, a, b):
        np.random.seed(int(100 * a))
        mixprec.functions.reset_dropout()

    def write(self, a, b):
        self.model.predictor.fc.W.array[0, 0] = a

    def replace(self, a, b):
        bn, fc = self.model.predictor.bn, self.model.predictor.fc
        if a < 0.5:
            bn.avg_mean = bn.avg_mean.copy()
        else:
            fc.W.array = fc.W.array.copy()

    def reset(self, a, b):
        if self.run.step is not None:
            (self.run if a < 0.5 else self.second).step.reset()


@pytest.mark.parametrize("seed", first(0, range(6), 2))
def test_a_random_program(seed, cuda):
    choose = random.Random(seed)
    names = [name for name in vars(Actions) if not name.startswith("_") and name not in ("batch", "evaluate_eagerly")]
    program = [
        (name, choose.random(), choose.random())
        for _ in range(14)
        for name in ("steps", choose.choice(names), *["steps"] * choose.choice([0, 2]))
    ]
    rule = choose.choice(["MomentumSGD", "Adam", "LARS", "MSVAG"])
    settings = {"dropout": choose.choice([0, 0.5]), "zero_gradients": choose.random() < 0.3}
    found = []
    for wishes in (None, {"graphs": choose.choice([1, 2, 4]), "warmup": choose.choice([2, 3])}):
        scale = mixprec.DynamicLossScale(init=2.0**7, interval=5, patience=4)
        run = Run(wishes, rule, network=Small, loss_scale=scale, **settings)
        actions, errors = Actions(run, wishes, cuda.graphs), []
        for name, a, b in program:
            try:
                getattr(actions, name)(a, b)
            except (mixprec.LossScaleExhausted, KeyError, TypeError, ValueError, RuntimeError) as error:
                errors.append((name, str(error)))
        found.append((run.results(), actions.seen, errors))
    assert found[1][1:] == found[0][1:]
    assert_same(run, found[0][0])
    assert run.step.why_not is None
    assert run.step.replays >= 5

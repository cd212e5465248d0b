"""Deferred batch normalizations: what is fused, what is not, and that nobody can tell by the numbers."""

import concurrent.futures
import contextlib
import copy
import gc
import pickle
import threading
import weakref

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import mixprec
from mixprec.precision.conversion_state import active
from mixprec.rewrite.fusions import ADD_RELU, DUAL, NAMES, RELU
from tests.cases import first, pairs
from tests.rewrite.twins import WIDTH, assert_same, beside, fusions, images, new, site, statistics, step

KEPT = "it is kept, or a result of the model"


def normalized(model, x):
    """The batch normalization that most tests look at."""
    return model.bn1(model.conv1(model.stem(x)))


def calls(model):
    """Counts the calls of a model, from 1."""
    model.calls = getattr(model, "calls", 0) + 1
    return model.calls


# What is fused: name -> (function of the model, what is found for each batch normalization that it uses).


def relu_by_name(m, x):
    return m.conv2(F.relu(normalized(m, x)))


def sum_with_plus(m, x):
    x = m.stem(x)
    return F.relu(m.bn1(m.conv1(x)) + x)


def sum_in_place(m, x):
    x = m.stem(x)
    h = F.relu(m.bn1(m.conv1(x)))
    h = m.bn2(m.conv2(h))
    h += x
    return F.relu(h)


def shortcut_in_place(m, x):
    x = m.stem(x)
    h = m.bn1(m.conv1(x))
    x += h
    return F.relu(x)


def sum_by_function(m, x):
    x = m.stem(x)
    return F.relu(F.add(m.bn1(m.conv1(x)), x))


def projection(m, x):
    """A shortcut with a batch normalization of its own."""
    x = m.stem(x)
    h = F.relu(m.bn1(m.conv1(x)))
    return F.relu(m.bn2(m.conv2(h)) + m.bn3(m.conv3(x)))


def in_a_list(m, x):
    history = [m.stem(x)]
    for layer in (m.conv1, m.bn1, F.relu, m.conv2):
        history.append(layer(history[-1]))
    return history[-1]


def one_link_in_two_ways(m, x):
    h = F.relu(m.bn1(m.conv1(m.stem(x))))
    return F.sigmoid(m.bn1(m.conv2(h)))


def without_a_link(m, x):
    h = F.batch_normalization(m.conv1(m.stem(x)), m.bn1.gamma, m.bn1.beta)
    return m.conv2(F.relu(h))


def two_dimensions(m, x):
    h = F.average(m.stem(x), axis=(2, 3))
    return F.relu(m.bn1(h))


FUSED = [
    (relu_by_name, {"/bn1": [RELU]}),
    (sum_with_plus, {"/bn1": [ADD_RELU]}),
    (sum_in_place, {"/bn1": [RELU], "/bn2": [ADD_RELU]}),
    (shortcut_in_place, {"/bn1": [ADD_RELU]}),
    (sum_by_function, {"/bn1": [ADD_RELU]}),
    (projection, {"/bn1": [RELU], "/bn2": [DUAL], "/bn3": [DUAL]}),
    (in_a_list, {"/bn1": [RELU]}),
    (one_link_in_two_ways, {"/bn1": [RELU, "Sigmoid follows"]}),
    (two_dimensions, {"/bn1": [RELU]}),
]


@pytest.mark.parametrize(("function", "expected"), FUSED, ids=[function.__name__ for function, _ in FUSED])
def test_what_is_fused(function, expected):
    model, report = beside(function, example=images(0))
    assert {name: found for name, found in fusions(model).items() if found} == expected
    found = [each for sites in expected.values() for each in sites]
    alone = len([each for each in found if each not in NAMES])
    assert report.fused == {name: found.count(name) for name in NAMES} | {"": alone}


@pytest.mark.parametrize(("function", "expected"), FUSED[:6], ids=[function.__name__ for function, _ in FUSED[:6]])
def test_without_an_example_the_same_is_fused_from_the_first_call_on(function, expected, announced):
    model, report = beside(function, calls=1)
    for name, found in fusions(model).items():
        assert [each in NAMES and each for each in found] == [each in NAMES and each for each in expected.get(name, [])]
    assert report.traced
    assert not announced.records


def test_batch_normalization_of_the_model_itself_is_fused():
    model, report = beside(without_a_link)
    assert site(model).fused == RELU
    assert report.fused[RELU] == 1


@pytest.mark.parametrize("function", [relu_by_name, sum_with_plus, projection], ids=lambda each: each.__name__)
def test_evaluation_is_a_place_of_its_own(function):
    with chainer.using_config("train", False):
        model, _ = beside(function)
    assert site(model.bn1, train=False).fused == (ADD_RELU if function is sum_with_plus else RELU)
    assert (True, 0) not in model.bn1.__dict__["_mixprec_conversion"].normalization_sites
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        beside(function)


def test_fuse_false_fuses_nothing():
    model, report = beside(projection, fuse=False)
    assert not any(fusions(model).values())
    assert report.fused == dict.fromkeys(NAMES, 0) | {"": 3}


# What is not fused, and why. A function may keep something in `m.notes`.


def _keep(m, value):
    m.notes[:] = [value]
    return value


NOT_FUSED = {
    "leaky relu": (lambda m, x: F.leaky_relu(normalized(m, x)), "LeakyReLU follows"),
    "a number": (lambda m, x: F.relu(normalized(m, x) + 0.25), "AddConstant follows"),
    "three": (lambda m, x: F.relu(F.add(normalized(m, x), m.stem(x), m.stem(x))), "MultiAdd follows"),
    "itself": (lambda m, x: F.relu((h := normalized(m, x)) + h), "it is used by 2: Add, Add"),
    "twice": (lambda m, x: F.relu(h := normalized(m, x)) * F.sigmoid(h), "it is used by 2: ReLU, Sigmoid"),
    "tanh before": (lambda m, x: F.tanh(h := normalized(m, x)) * F.relu(h), "it is used by 2: Tanh, ReLU"),
    "kept": (lambda m, x: F.relu(_keep(m, normalized(m, x))), KEPT),
    "a result": (lambda m, x: (h := normalized(m, x), F.relu(h)), KEPT),
    "not used": (lambda m, x: (normalized(m, x), m.stem(x))[1], "it is not used"),
    "broadcast": (
        lambda m, x: F.relu(normalized(m, x) + F.broadcast_to(m.bn2.gamma[:, None, None], (WIDTH, 6, 6))),
        "it is added to a deferred variable, or broadcast",
    ),
    "sum kept": (
        lambda m, x: F.relu(_keep(m, normalized(m, x) + m.stem(x))),
        "a sum with it is kept, or a result of the model",
    ),
    "sum twice": (
        lambda m, x: F.relu(s := normalized(m, x) + m.stem(x)) + s,
        "an addition follows, and then ReLU, Add",
    ),
    "sum and tanh": (lambda m, x: F.tanh(normalized(m, x) + m.stem(x)), "an addition follows, and then Tanh"),
    "sum alone": (lambda m, x: normalized(m, x) + m.stem(x), "a sum with it is kept, or a result of the model"),
}


@pytest.mark.parametrize("name", NOT_FUSED)
def test_what_is_not_fused_and_why(name, announced):
    function, why = NOT_FUSED[name]
    model, report = beside(function, example=images(0))
    assert fusions(model)["/bn1"] == [why]
    assert report.fused[RELU] == report.fused[ADD_RELU] == 0
    assert why in str(report)
    assert not announced.records


def test_a_sum_with_an_array_that_is_no_variable_is_not_fused():
    offset = images(5, (3, WIDTH, 6, 6))
    model, _ = beside(lambda m, x: F.relu(normalized(m, x) + offset))
    assert not site(model.bn1).fused


# Somebody looks at a deferred variable: before the ReLU, between ReLU and convolution, or after the convolution has
# used the ReLU, in the second call for the first time.


def _weighed(h):
    """A number that depends on each element differently: the gradient of a sum of normalized values would be 0."""
    weights = np.random.RandomState(3).uniform(0, 1, h.shape).astype(h.dtype)
    return F.sum(h * weights) * 0.1


def _pickled(m, h):
    return float(pickle.loads(pickle.dumps(h)).array.std())


def _backwards(m, h):
    h.unchain_backward()


def _in_a_user_s_function(m, h):
    class Double(chainer.Function):
        def forward(self, inputs):
            return (inputs[0] * 2,)

        def backward(self, inputs, grads):
            return (grads[0] * 2,)

    return _weighed(Double()(h))


def _without_backprop(m, h):
    with chainer.no_backprop_mode():
        return _weighed(F.relu(h)).array


LOOKS = {
    "array": lambda m, h: h.array.std(),
    "raw array": lambda m, h: h.raw_array.std(),
    "str": lambda m, h: float(len(str(h)) > 0),
    "repr": lambda m, h: float("Deferred" in repr(h)),
    "copy": lambda m, h: _weighed(copy.copy(h)),
    "deepcopy": lambda m, h: float(copy.deepcopy(h).array.std()),
    "pickle": _pickled,
    "float64": lambda m, h: F.cast(_weighed(F.cast(h, "float64")), "float32"),
    "sigmoid": lambda m, h: _weighed(F.sigmoid(h)),
    "relu": lambda m, h: _weighed(F.relu(h)),
    "sum": lambda m, h: _weighed(h + h),
    "item": lambda m, h: h[0, 0, 0, 0] * 0.1,
    "user's function": _in_a_user_s_function,
    "kept": lambda m, h: m.notes.append(h),
    "kept in a closure": lambda m, h: m.notes.append(lambda: h),
    "kept by its node": lambda m, h: m.notes.append(h.node),
    "named": lambda m, h: setattr(h, "name", "h"),
    "gradient set": lambda m, h: setattr(h, "grad", np.ones(h.shape, h.dtype)),
    "attribute": lambda m, h: setattr(h, "note", 1),
    "creator": lambda m, h: float(h.creator is h.creator_node),
    "unchained": _backwards,
    "no_backprop_mode": _without_backprop,
}
TIMES = ("before the ReLU", "after the ReLU", "after the convolution")


WHEN = {
    "at once": lambda m, x: True,
    "in the second call": lambda m, x: calls(m) > 1,
    "after an example": lambda m, x: not np.array_equal(chainer.as_array(x), images(0)),
}


def _looked_at(look, time, added, when="in the second call"):
    def function(m, x):
        later = WHEN[when](m, x)
        del m.notes[:]
        x = m.stem(x)
        total = [F.sum(x) * 0.01]

        def look_now(*things):
            if later:
                total.extend(found for thing in things if (found := look(m, thing)) is not None)

        h = m.bn1(m.conv1(x))
        s = h + x if added else h
        things = {id(h): h, id(s): s}.values()
        if time == TIMES[0]:
            look_now(*things)
        y = F.relu(s)
        if time == TIMES[1]:
            look_now(*things)
        z = m.conv2(y)
        if time == TIMES[2]:
            look_now(*things)
        return z, sum(total[1:], total[0])

    return function


# Those who want nothing at once: the ReLU, or another one, has been computed when they are given what they want.
LATE = {"kept", "kept in a closure", "relu"}


@pytest.mark.parametrize(
    ("name", "time", "when", "added"), first(27, pairs(list(LOOKS), TIMES, list(WHEN), [False, True]))
)
def test_whoever_looks_sees_what_plain_chainer_would_show(when, name, time, added, announced):
    example = images(0) if when == "after an example" else None
    model, _ = beside(_looked_at(LOOKS[name], time, added, when), calls=3, example=example)
    assert site(model.bn1).fused is False
    assert site(model.bn1).why
    # What has been fused is computed a second time in the call in which somebody looks, and never again.
    messages = [record.getMessage() for record in announced.records]
    assert [m[:51] for m in messages] == ["/bn1: a batch normalization is computed twice in on"] * len(messages)
    assert len(messages) == (time == TIMES[2] or name in LATE)


def _shape_and_the_like(m, h):
    n, c, height, width = h.shape
    assert (h.ndim, h.size, len(h), h.dtype.kind) == (4, n * c * height * width, n, "f")
    assert (h.xp, h.device.name, h.requires_grad) == (np, "@numpy", chainer.config.enable_backprop)
    assert isinstance(h, chainer.Variable)
    assert h is +h
    assert h.layout is None


@pytest.mark.parametrize(("time", "added"), pairs(TIMES, [False, True])[:3])
def test_shape_dtype_device_and_length_are_known_without_computing(time, added, announced):
    model, _ = beside(_looked_at(_shape_and_the_like, time, added))
    assert site(model.bn1).fused == (ADD_RELU if added else RELU)
    assert not announced.records


def test_chainer_grad_by_a_fused_normalization():
    """As for a gradient penalty or Grad-CAM: the graph is asked for what fusion has left out."""

    def function(m, x):
        x = m.stem(x)
        h = m.bn1(m.conv1(x))
        s = h + x
        y = m.conv2(F.relu(s))
        by_h, by_s, by_x = chainer.grad([_weighed(F.tanh(y))], [h, s, x])
        return y, by_h, by_s, by_x

    model, _ = beside(function)
    assert site(model.bn1).fused is False


def test_a_gradient_inside_of_the_model_by_a_fused_relu_leaves_it_fused():
    def function(m, x):
        y = F.relu(normalized(m, x))
        (by_y,) = chainer.grad([_weighed(F.tanh(m.conv2(y)))], [y])
        return y, by_y

    model, _ = beside(function)
    assert site(model.bn1).fused == RELU


def _kept_gradients(model, x, keep_from):
    """Gradients of what the model keeps, as ``backward(retain_grad=True)`` leaves them."""
    del model.notes[:]
    model.keeps = getattr(model, "calls", 0) + 1 >= keep_from
    model.cleargrads()
    F.sum(model(x) ** 2).backward(retain_grad=True)
    return {str(number): h.grad for number, h in enumerate(model.notes)} | {"W": model.conv1.W.grad}


@pytest.mark.parametrize(("keep_from", "added"), [(1, False), (2, True), (3, True)])
def test_gradients_of_what_the_user_keeps(added, keep_from):
    def function(m, x):
        calls(m)
        x = m.stem(x)
        things = [m.bn1(m.conv1(x))]
        if added:
            things.append(things[-1] + x)
        things.append(F.relu(things[-1]))
        if m.keeps:
            m.notes += things
        return m.conv2(things[-1])

    plain, converted = new(function), new(function)
    mixprec.convert(converted, compute="float32")
    for call in range(4):
        expected = _kept_gradients(plain, images(call), keep_from)
        assert all(grad is not None for grad in expected.values())
        assert_same(_kept_gradients(converted, images(call), keep_from), expected)
    assert site(converted.bn1).fused is False


def _kept_without_shortcut(m, x):
    """The shortcut, whose array nothing needs any more, and the sum with it are gone when the call ends."""
    number = calls(m)
    x = m.stem(x)
    h = m.bn1(m.conv1(x))
    if number == m.keeps:
        m.notes.append(h)
    return F.average(F.relu(h + m.conv3(x)), axis=(2, 3))


@pytest.mark.parametrize("unchained", [False, True])
def test_what_is_kept_without_its_shortcut_has_gradients_and_can_be_unchained(unchained):
    plain, converted = new(_kept_without_shortcut), new(_kept_without_shortcut)
    mixprec.convert(converted, compute="float32")
    for call in range(4):
        found = []
        for model in (plain, converted):
            del model.notes[:]
            model.keeps = 2
            model.cleargrads()
            loss = F.sum(model(images(call)) ** 2)
            if unchained and model.notes:
                model.notes[0].unchain()
            loss.backward(retain_grad=True)
            kept = {str(number): h.grad for number, h in enumerate(model.notes)}
            found.append({name: param.grad for name, param in sorted(model.namedparams())} | kept)
        assert (found[0]["/conv1/W"] is None) == (unchained and call == 1)
        assert_same(found[1], found[0])
    assert site(converted.bn1).fused is False


def test_what_only_an_exception_in_a_cycle_holds_is_not_kept(announced):
    """As cuDNN's frontend does it: the frame of an exception has it as a variable, and all frames around it."""

    def caught():
        try:
            raise ValueError
        except ValueError as error:
            kept = error
        return kept is None

    def function(m, x):
        h = m.bn1(m.conv1(m.stem(x)))
        caught()
        return m.conv2(F.relu(h))

    threshold = gc.get_threshold()
    gc.set_threshold(0)  # none but that of mixprec
    try:
        model, _ = beside(function)
    finally:
        gc.set_threshold(*threshold)
    assert site(model.bn1).fused == RELU
    assert not announced.records


def test_a_relu_that_is_kept_makes_no_call_collect_garbage(monkeypatch):
    """It is computed as it was to be, so that nothing depends on whether it is kept."""
    collected = []

    def function(m, x):
        m.notes[:] = [F.relu(m.bn1(m.conv1(m.stem(x))))]
        return m.conv2(m.notes[0]) if calls(m) < 2 else m.conv2(m.stem(x))

    model = new(function)
    mixprec.convert(model, compute="float32")
    monkeypatch.setattr(gc, "collect", lambda *_: collected.append(None))
    for call in range(4):
        step(model, images(call))
    assert not collected
    assert site(model.bn1).fused == RELU


# The model does something else in later calls.


def used_otherwise_in_every_call(m, x):
    """What is proven in the first call of each place is not true in the next."""
    number = calls(m)
    x = m.stem(x)
    h1, h2 = m.bn1(m.conv1(x)), m.bn2(m.conv2(x))
    if number % 4 == 1:
        return F.relu(h1 + x) + F.relu(h2 + x)
    if number % 4 == 2:
        return F.sigmoid(h1 + h2)
    if number % 4 == 3:
        return F.relu(h1 + F.relu(h2)) + F.relu(h2)
    return F.relu(h2 + h1) + h1


def its_own_relu_is_added(m, x):
    number = calls(m)
    x = m.stem(x)
    h = m.bn1(m.conv1(x))
    return F.relu(h + x) if number == 1 else F.relu(h + F.relu(h))


def relu_of_relu_of_sum(m, x):
    number = calls(m)
    x = m.stem(x)
    s = m.bn1(m.conv1(x)) + x
    y = F.relu(s)
    if number > 1:
        m.notes[:] = [F.relu(y), y]
    return m.conv2(F.relu(y))


def dropped(m, x):
    number = calls(m)
    h = normalized(m, x)
    return m.stem(x) if number % 3 == 2 else F.relu(h)


def another_order(m, x):
    """The second is computed first, and both move the same running statistics."""
    number = calls(m)
    x = m.stem(x)
    y1, y2 = F.relu(m.bn1(m.conv1(x))), F.relu(m.bn1(m.conv2(x) * 2))
    return m.conv3(y1) + y2 if number == 1 else F.tanh(m.conv3(y2)) + y1


def no_backprop_for_the_relu(m, x):
    h = normalized(m, x)
    with chainer.no_backprop_mode():
        y = F.relu(h)
    return m.conv2(y) + m.stem(x)


def no_backprop_for_the_sum(m, x):
    x = m.stem(x)
    h = m.bn1(m.conv1(x))
    with chainer.no_backprop_mode():
        s = h + x
    return m.conv2(F.relu(s)) + x


def backprop_for_the_relu_only(m, x):
    with chainer.no_backprop_mode():
        h = normalized(m, x)
        with chainer.force_backprop_mode():
            y = m.conv2(F.relu(h))
    return y + m.stem(x)


def evaluation_for_the_relu(m, x):
    h = normalized(m, x)
    with chainer.using_config("train", False):
        return m.conv2(F.relu(h))


def forgotten(m, x):
    h = F.forget(lambda x: F.relu(m.bn1(m.conv1(x))), m.stem(x))
    return F.forget(lambda h: F.relu(m.bn2(m.conv2(h)) + h), h)


def frozen_and_not(m, x):
    """The running statistics that one of them reads are those that the other one has not moved yet."""
    h = m.conv1(m.stem(x)).array
    with chainer.using_config("train", False):
        frozen = F.relu(m.bn1(h))
    moving = F.relu(m.bn1(h * 2))
    return m.conv2(moving) + m.conv3(frozen).array


def finetuned(m, x):
    return F.relu(m.bn1(m.conv1(m.stem(x)), finetune=True))


def without_gradients(m, x):
    """Nothing before the ReLU wants a gradient."""
    return m.conv2(F.relu(F.batch_normalization(x[:, :2], np.ones(2, x.dtype), np.zeros(2, x.dtype)))[:, [0, 1, 0, 1]])


def unchained_after_the_convolution(m, x):
    x = m.stem(x)
    h = m.bn1(m.conv1(x))
    y = m.conv2(F.relu(h))
    h.unchain_backward()
    return y + x


def unchained_by_hand(m, x):
    x = m.stem(x)
    s = m.bn1(m.conv1(x)) + x
    y = m.conv2(F.relu(s)) + F.relu(m.bn2(m.conv3(x)))
    s.creator_node = None
    return y


def unchained_behind_the_relu(m, x):
    """What is before the ReLU is unchained as well."""
    x = m.stem(x)
    h = m.bn1(m.conv1(x))
    y = F.relu(h)
    y.unchain_backward()
    return F.relu(m.bn2(m.conv2(y))) + F.sigmoid(h) + x


CHANGES = [
    *(used_otherwise_in_every_call, its_own_relu_is_added, relu_of_relu_of_sum, dropped, another_order),
    *(no_backprop_for_the_relu, no_backprop_for_the_sum, backprop_for_the_relu_only, evaluation_for_the_relu),
    *(forgotten, frozen_and_not, finetuned, without_gradients, unchained_after_the_convolution),
    *(unchained_by_hand, unchained_behind_the_relu),
]


@pytest.mark.parametrize("function", CHANGES)
def test_results_gradients_and_statistics_are_those_of_plain_chainer(function):
    beside(function, calls=8)


@pytest.mark.parametrize("function", [relu_by_name, projection, sum_in_place, another_order, forgotten])
def test_the_same_without_backprop(function):
    with chainer.no_backprop_mode():
        beside(function)
    with chainer.no_backprop_mode(), chainer.using_config("train", False):
        beside(function)


def test_training_evaluation_and_training_again():
    plain, converted = new(projection), new(projection)
    mixprec.convert(converted, compute="float32")
    for call in range(6):
        with chainer.using_config("train", call % 3 != 2):
            assert_same(step(converted, images(call)), step(plain, images(call)))
    sites = converted.bn2.__dict__["_mixprec_conversion"].normalization_sites
    assert {key: each.fused for key, each in sites.items()} == {(True, 0): DUAL, (False, 0): ADD_RELU}


# Hooks.


class _Notes(chainer.FunctionHook):
    name = "notes"

    def __init__(self):
        self.seen = []

    def forward_postprocess(self, function, in_data):
        self.seen.append(function.label)


class _Sums(chainer.LinkHook):
    """Reads what links return."""

    name = "sums"

    def __init__(self, kind=chainer.Link, kept=None):
        self.kind = kind
        self.kept = kept
        self.sums = []

    def forward_postprocess(self, args):
        if isinstance(args.link, self.kind):
            self.sums.append(float(abs(args.out.array).sum()))
            if self.kept is not None:
                self.kept.append(args.out)


@pytest.mark.parametrize("kept", [False, True], ids=["read", "kept"])
@pytest.mark.parametrize("local", [False, True], ids=["global", "local"])
def test_link_hooks_see_what_links_return(local, kept):
    plain, converted = new(projection), new(projection)
    mixprec.convert(converted, images(7), compute="float32")
    assert site(converted.bn2).fused == DUAL
    found = []
    for model in (plain, converted):
        hook = _Sums(L.BatchNormalization, [] if kept else None)
        if local:
            model.bn2.add_hook(hook)
        with contextlib.nullcontext() if local else hook:
            for call in range(3):
                found.append(step(model, images(call)))
        assert len(hook.sums) == (3 if local else 9)
        found.append({str(number): each for number, each in enumerate(hook.sums)})
    for each, expected in zip(found[4:], found[:4], strict=True):
        assert_same(each, expected)
    assert site(converted.bn2).fused is False
    assert (site(converted.bn1).fused == RELU) == local


def test_function_hooks_see_every_function_alone_and_fusion_goes_on_afterwards():
    model, _ = beside(projection)
    with _Notes() as hook:
        model(images(0))
    assert [label for label in hook.seen if "batch" in label or label in ("relu", "add")] == [
        *("batch_normalization", "relu", "batch_normalization", "batch_normalization", "add", "relu")
    ]
    assert site(model.bn2).fused == DUAL
    node = model(images(0)).creator_node.inputs[0].creator_node
    assert node.label == "dual_batch_normalization + relu"


def test_function_hooks_in_the_first_calls_do_not_decide_anything():
    plain, converted = new(projection), new(projection)
    mixprec.convert(converted, compute="float32")
    for call in range(5):
        with _Notes() if call < 2 else contextlib.nullcontext():
            assert_same(step(converted, images(call)), step(plain, images(call)))
    assert site(converted.bn2).fused == DUAL


# Exceptions, threads, calls within calls.


class _Failure(Exception):
    pass


@pytest.mark.parametrize("where", range(4))
def test_an_exception_in_the_middle_leaves_nothing_behind(where):
    def function(m, x):
        number = calls(m)

        def fail(here):
            if number in (2, 4) and here == where:
                raise _Failure

        x = m.stem(x)
        fail(0)
        h = m.bn1(m.conv1(x))
        fail(1)
        s = h + x
        fail(2)
        y = F.relu(s)
        fail(3)
        return m.conv2(y)

    plain, converted = new(function), new(function)
    mixprec.convert(converted, compute="float32")
    for call in range(6):
        if call in (1, 3):
            for model in (plain, converted):
                with pytest.raises(_Failure) as caught:
                    model(images(call))
                assert caught.value.__cause__ is caught.value.__context__ is None
        else:
            assert_same(step(converted, images(call)), step(plain, images(call)))
        assert active.scope is None
        assert F.relu(np.ones((1, 1), np.float16)).dtype == np.float16  # plain Chainer
    assert site(converted.bn1).fused == ADD_RELU


def test_a_deferred_variable_that_outlives_an_exception_is_computed_when_it_is_read():
    def function(m, x):
        number = calls(m)
        h = normalized(m, x)
        if number == 3:
            m.notes.append(h)
            m.notes.append(F.relu(h))
            raise _Failure
        return m.conv2(F.relu(h))

    plain, converted = new(function), new(function)
    mixprec.convert(converted, compute="float32")
    for model in (plain, converted):
        for call in range(2):
            model(images(call))
        with pytest.raises(_Failure):
            model(images(2))
    for found, expected in zip(converted.notes, plain.notes, strict=True):
        np.testing.assert_allclose(found.array, expected.array, atol=1e-5)
    assert_same(statistics(converted), statistics(plain))


def test_two_threads_run_two_models_at_once():
    meeting = threading.Barrier(2, timeout=30)

    def function(m, x, wait=meeting.wait):
        h = normalized(m, x)
        wait()
        y = F.relu(h)
        wait()
        return F.relu(m.bn2(m.conv2(y)) + y)

    def alone(m, x):
        return function(m, x, lambda: None)

    def train(model, compute, seed):
        mixprec.convert(model, compute=compute)
        found = [step(model, images(seed + call)) for call in range(4)]
        assert fusions(model)["/bn1"] == [RELU]
        return found

    runs = ("float32", 0), ("float16", 10)
    models = [new(function) for _ in runs]  # not in the threads: all share NumPy's seed
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        together = [pool.submit(train, model, *run) for model, run in zip(models, runs, strict=True)]
    for future, run in zip(together, runs, strict=True):
        for found, expected in zip(future.result(), train(new(alone), *run), strict=True):
            for name, array in expected.items():
                np.testing.assert_array_equal(found[name], array)


def test_another_thread_that_computes_plain_chainer_is_left_alone():
    inside, done = threading.Event(), threading.Event()
    found = []

    def function(m, x):
        h = normalized(m, x)
        inside.set()
        assert done.wait(30)
        return F.relu(h)

    def other():
        assert inside.wait(30)
        found.append(F.relu(np.ones((1, 1), np.float16)).creator_node.__class__.__module__)
        done.set()

    model = new(function)
    mixprec.convert(model)
    thread = threading.Thread(target=other)
    thread.start()
    model(images(0))
    thread.join()
    assert found == ["chainer.functions.activation.relu"]


@pytest.mark.parametrize("compute", ["float32", "float16", "bfloat16"])
def test_a_converted_model_within_another_one(compute):
    """A teacher that is no child of its student, for which the student's dtype is none."""
    teachers = {}

    def function(m, x):
        h = F.relu(normalized(m, x))
        with chainer.using_config("train", False), chainer.no_backprop_mode():
            target = teachers[id(m)](x)
        assert target.dtype == np.float32
        return m.conv2(h), target * 1

    plain, converted = new(function), new(function)
    for model in (plain, converted):
        teachers[id(model)] = new(projection)
    mixprec.convert(teachers[id(converted)], compute="float32")
    mixprec.convert(converted, compute=compute)
    for call in range(3):
        expected, found = step(plain, images(call)), step(converted, images(call))
        np.testing.assert_allclose(found["result 1"], expected["result 1"], atol=1e-5)
        bound = {"float32": 1e-5, "float16": 2e-2, "bfloat16": 0.15}[compute]
        np.testing.assert_allclose(
            found["result 0"], expected["result 0"], atol=bound * abs(expected["result 0"]).max()
        )
    assert site(teachers[id(converted)].bn2, train=False).fused == ADD_RELU
    assert site(converted.bn1).fused == RELU


def generated(m, x):
    """The body runs when the caller goes on, after the call."""

    def parts():
        h = m.stem(x)
        for conv, bn in ((m.conv1, m.bn1), (m.conv2, m.bn2)):
            h = F.relu(bn(conv(h)))
            yield h

    return parts()


def test_a_generator_that_leaves_the_model_computes_outside_of_it():
    plain, converted = new(generated), new(generated)
    mixprec.convert(converted, compute="float32")
    for call in range(3):
        found, expected = list(converted(images(call))), list(plain(images(call)))
        for y, each in zip(found, expected, strict=True):
            assert y.dtype == np.float32
            np.testing.assert_allclose(y.array, each.array, atol=1e-5)
    assert_same(statistics(converted), statistics(plain))


def test_a_generator_within_the_model():
    def function(m, x):
        return tuple(y * 2 for y in generated(m, x))

    model, _ = beside(function)
    assert fusions(model)["/bn1"] == fusions(model)["/bn2"] == [RELU]


# What is left behind.


def test_nothing_of_a_call_outlives_it(no_collector):
    """Inputs of what was deferred, unused or watched are freed without the garbage collector."""

    def function(m, x):
        number = calls(m)
        h = m.conv1(m.stem(x))
        m.notes[:] = [weakref.ref(h.array), weakref.ref(h)]
        y = F.relu(m.bn1(h))
        m.bn2(h) if number > 1 else F.relu(m.bn2(h))
        return m.conv3(y)

    model = new(function)
    mixprec.convert(model, compute="float32")
    for call in range(3):
        y = model(images(call))
        array, variable = model.notes
        assert variable() is None
        assert array() is not None  # of the graph
        del y
        assert array() is None
        with chainer.no_backprop_mode():
            model(images(call))
        assert model.notes[0]() is None


def test_a_fused_normalization_does_not_keep_what_the_relu_would_have_kept():
    graphs = {}
    for fuse in (False, True):
        model = new(lambda m, x: F.average_pooling_2d(F.relu(normalized(m, x)), 2))
        report = mixprec.convert(model, images(0), compute="float32", fuse=fuse)
        graphs[fuse] = report.activation_bytes
    (before, unfused), (same, fused) = graphs[False], graphs[True]
    assert before == same
    assert unfused - fused == 4 * 3 * WIDTH * 6 * 6


# 16-bit dtypes: what is fused is rounded once.


ROUNDED = [
    ("float16", 2.0**-11, True),
    ("float16", 2.0**-11, False),
    ("bfloat16", 2.0**-8, True),
    ("float32", 2.0**-24, True),
]


@pytest.mark.parametrize(("compute", "eps", "added"), ROUNDED)
def test_what_is_fused_is_rounded_once(compute, eps, added):
    seen = {}

    def function(m, x):
        x = m.stem(x)
        h = m.conv1(x)
        seen.update(x=x.array.astype(np.float64), h=h.array.astype(np.float64))
        y = m.bn1(h)
        y = F.relu(y + x if added else y)
        seen.update(y=y.array.astype(np.float64), dtype=y.dtype.name)
        return y

    model = new(function)
    mixprec.convert(model, images(0), compute=compute)
    model(images(1))
    assert site(model.bn1).fused == (ADD_RELU if added else RELU)
    assert seen["dtype"] == compute
    gamma, beta = (param.array.astype(np.float64) for param in (model.bn1.gamma, model.bn1.beta))
    exact = F.batch_normalization(seen["h"], gamma, beta, eps=model.bn1.eps).array
    size = abs(exact) + added * abs(seen["x"])
    exact = np.maximum(exact + added * seen["x"], 0)
    # FP32: a mean and a variance of 108 numbers, then a product and two sums; half a subnormal of FP16.
    within_fp32 = 64 * 2.0**-24 * (size + abs(gamma).max() + abs(beta).max())
    assert (abs(seen["y"] - exact) <= eps * abs(exact) + within_fp32 + 2.0**-25).all()


@pytest.mark.parametrize(("compute", "function"), [("float16", projection), ("bfloat16", one_link_in_two_ways)])
def test_gradients_of_what_is_fused_are_those_of_what_is_not(compute, function):
    eps = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[compute]
    found = {}
    for fuse in (False, True):
        model = new(function)
        mixprec.convert(model, images(0), compute=compute, fuse=fuse)
        found[fuse] = {name: array for name, array in step(model, images(1)).items() if array is not None}
    assert found[True].keys() == found[False].keys()
    for name, expected in found[False].items():
        difference = np.linalg.norm(np.float64(found[True][name]) - np.float64(expected))
        # A sum that is rounded once in place of three times, in two places; the rest is the same arithmetic.
        assert difference <= 16 * eps * np.linalg.norm(np.float64(expected)), name


@pytest.mark.parametrize(
    ("compute", "time", "name"), pairs(["float16", "bfloat16"], TIMES, ["kept", "unchained", "sigmoid"])
)
def test_whoever_looks_at_16_bits_sees_what_is_there_without_fusion(compute, time, name):
    eps = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[compute]
    with_fusion, without = new(_looked_at(LOOKS[name], time, True)), new(_looked_at(LOOKS[name], time, True))
    mixprec.convert(with_fusion, compute=compute)
    mixprec.convert(without, compute=compute, fuse=False)
    for call in range(3):
        found, expected = step(with_fusion, images(call)), step(without, images(call))
        for key, array in expected.items():
            assert (array is None) == (found[key] is None), key
            if array is not None:
                difference = np.linalg.norm(np.float64(found[key]) - np.float64(array))
                assert difference <= 16 * eps * np.linalg.norm(np.float64(array)), (call, key)
    assert site(with_fusion.bn1).fused is False

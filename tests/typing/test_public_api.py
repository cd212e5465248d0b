"""Type hints of the public names: complete, and right about what there is when a user's program runs."""

import inspect
import types
import typing

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import mixprec
from mixprec.base.optimizer_names import OWN
from mixprec.graph_capture.captured import Captured
from mixprec.optimizer.rules import own_optimizers
from mixprec.optimizer.update_report import ParameterReport, UpdateReport
from mixprec.rewrite.conversion_report import LinkReport, Report
from mixprec.rewrite.trace import LayoutConversion
from tests import ROOT
from tests.typing import public_api

RETURNED = [Captured, LayoutConversion, LinkReport, ParameterReport, Report, UpdateReport]
PUBLIC = [getattr(mixprec, name) for name in mixprec.__all__] + RETURNED
SPECIAL = ("__init__", "__call__", "__getattr__", "__setattr__", "__str__")


def _own(cls):
    """Yields ``(name, value)`` of what a class defines for its users."""
    for name, value in vars(cls).items():
        if name in SPECIAL or not name.startswith("_"):
            yield name, value


def _functions(public):
    """Yields the functions whose signatures a user of a public name sees."""
    if inspect.isfunction(public):
        yield public
        return
    for _, value in _own(public):
        if isinstance(value, property):
            yield value.fget
        elif isinstance(value, (classmethod, staticmethod)):
            yield value.__func__
        elif inspect.isfunction(value) and value.__code__.co_filename != "<string>":  # what a dataclass generates
            yield value


def matches(value, hint):
    """Whether a value is what a type hint says; Chainer's own classes and texts included."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is typing.Any:
        return True
    if origin in (typing.Union, types.UnionType, typing.ClassVar):
        return any(matches(value, each) for each in arguments)
    if origin is typing.Literal:
        return value in arguments
    if origin is tuple and arguments[-1] is ...:
        return isinstance(value, tuple) and all(matches(each, arguments[0]) for each in value)
    if origin is tuple:
        is_as_long = isinstance(value, tuple) and len(value) == len(arguments)
        return is_as_long and all(map(matches, value, arguments))
    if origin is list:
        return isinstance(value, list) and all(matches(each, arguments[0]) for each in value)
    if origin is dict:
        return isinstance(value, dict) and all(
            matches(key, arguments[0]) and matches(each, arguments[1]) for key, each in value.items()
        )
    if hint is None:
        return value is None
    if hint is float:
        return type(value) in (float, int)
    return type(value) is hint if hint in (int, bool, str) else isinstance(value, hint)


def assert_as_hinted(instance):
    """Compares properties, attributes with hints, and methods without arguments that return something to be read."""
    cls = type(instance)
    hints = {}
    for name, value in _own(cls):
        if isinstance(value, property):
            hints[name] = typing.get_type_hints(value.fget)["return"]
    for name, hint in typing.get_type_hints(cls).items():
        hints[name] = hint
    for name in ("to_json", "report", "__str__"):
        if name in vars(cls):
            hint = typing.get_type_hints(vars(cls)[name])["return"]
            assert matches(getattr(instance, name)(), hint), (cls, name)
    for name, hint in hints.items():
        assert matches(getattr(instance, name), hint), (cls, name, getattr(instance, name), hint)


class Network(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv, self.bn = L.Convolution2D(3, 8, 3), L.BatchNormalization(8)
            self.fc = L.Linear(None, 10)

    def forward(self, x):
        return self.fc(F.relu(self.bn(self.conv(x))))


@pytest.fixture
def batch():
    x = np.random.RandomState(0).normal(size=(2, 3, 8, 8)).astype(np.float32)
    return x, np.arange(2, dtype=np.int32)


@pytest.mark.parametrize("public", PUBLIC, ids=lambda public: public.__name__)
def test_public_signatures_have_types_everywhere(public):
    for function in _functions(public):
        signature = inspect.signature(function)
        untyped = [
            name
            for name, parameter in signature.parameters.items()
            if parameter.annotation is inspect.Parameter.empty and name not in ("self", "cls")
        ]
        assert not untyped, f"{function.__qualname__}: {untyped}"
        assert signature.return_annotation is not inspect.Signature.empty, function.__qualname__


def test_names_for_type_checkers_are_those_that_are_loaded():
    lines = [
        line
        for name in ("__init__", "optimizer/rules/own_optimizers")
        for line in (ROOT / "mixprec" / f"{name}.py").read_text().splitlines()
    ]
    imports = [line.partition(" import ")[2] for line in lines if line.lstrip().startswith("from mixprec.")]
    imports.remove("*  # noqa: F403")  # of own_optimizers
    imports.remove("OWN as _OWN")
    assert sorted(each.split(" as ")[0] for each in imports) == sorted(mixprec.__all__) == sorted(mixprec._HOMES)
    assert set(own_optimizers.__all__) == set(OWN)
    modules = [line.split(" as ")[1] for line in lines if line.startswith("    from mixprec import ")]
    assert modules == sorted(mixprec._MODULES)
    assert set(modules) < set(dir(mixprec))
    with pytest.raises(AttributeError, match="module 'mixprec' has no attribute 'convret'"):
        mixprec.convret  # noqa: B018


def test_reports_are_what_their_types_say(batch):
    model = L.Classifier(Network())
    before = mixprec.convert(model)
    assert_as_hinted(before)  # nothing is known of the functions yet
    report = public_api.convert(model, batch[0])
    assert_as_hinted(report)
    assert report.links
    list(map(assert_as_hinted, report.links))
    updates = public_api.optimizers(model, *batch)
    assert_as_hinted(updates)
    assert updates.parameters
    list(map(assert_as_hinted, updates.parameters))


def test_objects_are_what_their_types_say(batch):
    public_api.scales()
    for scale in (mixprec.NoLossScale(), mixprec.StaticLossScale(2), mixprec.DynamicLossScale()):
        assert_as_hinted(scale)
    model = L.Classifier(Network())
    mixprec.convert(model, batch[0])
    assert_as_hinted(public_api.kfac(model, *batch))
    optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.MomentumSGD(0.1)).setup(model)
    step = public_api.capture(optimizer, *batch)
    assert matches(step.replays, int)
    assert matches(step.why_not, str | None)
    assert_as_hinted(step)
    assert_as_hinted(optimizer)
    for name, gradient in optimizer.unscaled_gradients():
        assert matches(name, str)
        assert gradient.dtype == np.float32


MATCHES = [
    *((1, int, True), (True, int, False), (np.bool_(True), bool, False), (1, float, True)),
    *((np.float64(1), float, False), (None, float | None, True), ((1, 2), tuple[int, int], True)),
    *(((1,), tuple[int, int], False), (("a", 1), tuple[str, ...], False), ({"a": 1}, dict[str, int], True)),
    ([1], list[str], False),
    ("nhwc", typing.Literal["nhwc", "nchw", "channels_last", "channels_first", "contiguous"], True),
]


@pytest.mark.parametrize(("value", "hint", "expected"), MATCHES)
def test_what_matches(value, hint, expected):
    assert matches(value, hint) is expected


def test_a_wheel_says_that_it_has_types():
    assert (ROOT / "mixprec" / "py.typed").is_file()

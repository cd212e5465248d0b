"""A user's program with all public names: mypy checks it in ``make lint``, ``test_public_api.py`` runs it."""

from collections.abc import Iterator
from typing import Any

import chainer
import chainer.links as L
import numpy as np
from numpy.typing import NDArray
from typing_extensions import assert_type

import mixprec
from mixprec.graph_capture.captured import Captured
from mixprec.optimizer.rules.lamb import LAMBRule
from mixprec.optimizer.rules.lars import LARSRule
from mixprec.optimizer.rules.schedule_free import ScheduleFreeSGDRule
from mixprec.optimizer.rules.sgdw import SGDWRule
from mixprec.optimizer.update_report import ParameterReport, UpdateReport
from mixprec.rewrite.conversion_report import LinkReport, Report
from mixprec.rewrite.trace import LayoutConversion

assert_type(mixprec.__version__, str)


def convert(model: chainer.Link, x: NDArray[Any]) -> Report:
    """Converts a model with all arguments, reads the report, and reverts another one."""
    report = mixprec.convert(model, x, compute=np.float16, layout="nhwc", fuse=True, conv_statistics=None, strict=False)
    assert_type(report, Report)
    assert_type(report.compute, str)
    assert_type(report.layout, str)
    assert_type(report.traced, bool)
    assert_type(report.links, tuple[LinkReport, ...])
    assert_type(report.links[0].fused, str)
    assert_type(report.parameters, dict[str, int])
    assert_type(report.parameter_bytes, tuple[int, int])
    assert_type(report.activation_bytes, tuple[int, int] | None)
    assert_type(report.largest_activation_bytes, int | None)
    assert_type(report.conversions, list[LayoutConversion] | None)
    assert_type(report.fused, dict[str, int] | None)
    assert_type(report.conv_statistics, int)
    assert_type(report.unknown_links, dict[tuple[str, str], str])
    assert_type(report.unconverted, list[str])
    assert_type(mixprec.convert(model, keep_float32=("/*", L.Linear)).too_narrow, list[str])
    assert_type(report.to_json(), str)
    assert_type(mixprec.revert(L.Linear(2, 2)), None)
    return report


def scales() -> None:
    """Makes loss scales, and reads them."""
    dynamic = mixprec.DynamicLossScale(
        init=2.0**10, growth=2.0, backoff=0.5, interval=100, floor=None, cap=None, hysteresis=1, patience=10
    )
    assert_type(dynamic.value, float)
    assert_type(dynamic.floor, float | None)
    assert_type(dynamic.interval, int)
    assert_type(dynamic.exhausted, bool)
    assert_type(dynamic.overflows_in_row, int)
    assert_type(dynamic.adjust(False), None)
    static = mixprec.StaticLossScale(128)
    assert_type(static.value, float)
    assert_type(static.patience, int | None)
    assert_type(mixprec.NoLossScale().value, float)
    assert_type(static.reset(), None)


def optimizers(model: chainer.Link, x: NDArray[Any], t: NDArray[Any]) -> UpdateReport:
    """Wraps rules with all arguments, runs a step in each way, and reads the report."""
    lars = mixprec.LARS(lr=0.1, momentum=0.9, weight_decay=1e-4, trust_coefficient=0.001, eps=1e-9, adapt=True)
    assert_type(lars.lr, float)
    assert_type(lars.create_update_rule(), LARSRule)
    lamb = mixprec.LAMB(lr=0.1, beta1=0.9, beta2=0.999, eps=1e-6, weight_decay=0.0, adapt=False)
    assert_type(lamb.adapt, bool)
    assert_type(lamb.create_update_rule(), LAMBRule)
    sgdw = mixprec.SGDW(lr=0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)
    assert_type(sgdw.nesterov, bool)
    assert_type(sgdw.create_update_rule(), SGDWRule)
    free = mixprec.ScheduleFreeSGD(lr=1.0, momentum=0.9, weight_decay=1e-4)
    assert_type(free.momentum, float)
    assert_type(free.create_update_rule(), ScheduleFreeSGDRule)
    averaging = mixprec.MixedPrecisionOptimizer(free, rates={"*": 10.0}).setup(model)
    with averaging.evaluated():
        model(x, t)
    for scale in (
        *("dynamic", 128.0, None, mixprec.NoLossScale(), mixprec.StaticLossScale(2), mixprec.DynamicLossScale()),
    ):
        mixprec.MixedPrecisionOptimizer(mixprec.LARS(), scale)
    optimizer = mixprec.MixedPrecisionOptimizer(
        lars, "dynamic", batched=True, no_decay=("ndim <= 1", L.BatchNormalization), zero_gradients=False
    ).setup(model)
    assert_type(optimizer, mixprec.MixedPrecisionOptimizer)
    optimizer.lr = 0.05  # hyperparameters are those of the rule
    optimizer.add_hook(lambda rule: None, "nothing", timing="pre")
    assert_type(optimizer.update(model, x, t), None)
    model.cleargrads()
    optimizer.scale_loss(model(x, t)).backward()
    assert_type(optimizer.unscaled_gradients(), Iterator[tuple[str, Any]])
    optimizer.update()
    assert_type(optimizer.loss_scale, float)
    assert_type(optimizer.scales_dynamically, bool)
    assert_type(optimizer.skipped, int)
    assert_type(optimizer.last_step_skipped, bool)
    for param in model.params():
        optimizer.master(param)
    report = optimizer.report()
    assert_type(report, UpdateReport)
    assert_type(report.parameters, tuple[ParameterReport, ...])
    assert_type(report.parameters[0].path, str)
    assert_type(report.batched, int)
    assert_type(report.to_json(), str)
    return report


def kfac(model: chainer.Link, x: NDArray[Any], t: NDArray[Any]) -> mixprec.KFAC:
    """Makes a preconditioner with all arguments, runs a step, sets what may be set, and reads the report."""
    found = mixprec.KFAC(0.1, decay=0.9, kl_clip=1e-3, factor_every=2, inverse_every=4, largest=4096)
    optimizer = mixprec.MixedPrecisionOptimizer(mixprec.LARS(), preconditioner=found).setup(model)
    optimizer.update(model, x, t)
    assert_type(found.damping, float)
    assert_type(found.kl_clip, float | None)
    assert_type(found.kind, int)
    assert_type(found.report(), str)
    found.damping, found.kl_clip = 0.05, None
    mixprec.MixedPrecisionOptimizer(mixprec.LARS(), preconditioner=None)
    return found


def capture(optimizer: mixprec.MixedPrecisionOptimizer, x: NDArray[Any], t: NDArray[Any]) -> Captured:
    """Captures a step with all arguments, and calls it."""
    step = mixprec.capture(
        optimizer, None, warmup=3, graphs=4, other_shapes="capture", required=False, second_stream=False
    )
    assert_type(step, Captured)
    try:
        step(x, t)
    except mixprec.LossScaleExhausted:
        raise
    assert_type(step.replays, int)
    assert_type(step.why_not, str | None)
    assert_type(step.report(), str)
    assert_type(step.reset(), None)
    return step


def recompute(model: L.Linear, x: chainer.Variable) -> chainer.Variable:
    """Marks a link and wraps a function, and takes that back."""
    assert_type(mixprec.recompute(model), L.Linear)
    assert_type(mixprec.recompute(model, on=False), L.Linear)
    double = mixprec.recompute(_double, True)
    return mixprec.recompute(double, on=False)(double(x))


def offload(model: L.Linear, x: chainer.Variable) -> str:
    """Enters a context, and reads its report."""
    with mixprec.offload("16 GB", to="folder", recompute=False, smallest=1 << 20, say=print) as memory:
        model(x)
    with mixprec.offload(0.8):
        model(x)
    return memory.report()


def _double(x: chainer.Variable) -> chainer.Variable:
    return chainer.Variable(x.array)


def mistakes(model: chainer.Link) -> None:
    """Calls that a type checker refuses, each on the line of its comment; this is not run."""
    mixprec.convert(model, layout="NHWC")  # type: ignore[arg-type]
    mixprec.convert(model, dtype="float16")  # type: ignore[call-arg]
    mixprec.DynamicLossScale(interval="2000")  # type: ignore[arg-type]
    mixprec.StaticLossScale()  # type: ignore[call-arg]
    mixprec.KFAC(damping="0.1")  # type: ignore[arg-type]
    mixprec.LARS(lr="0.1")  # type: ignore[arg-type]
    mixprec.SGDW(nesterov="no")  # type: ignore[arg-type]
    mixprec.MixedPrecisionOptimizer(mixprec.SGDW(), rates=["/fc/*"])  # type: ignore[arg-type]
    mixprec.capture(model, warmup=2.5)  # type: ignore[arg-type]
    mixprec.MixedPrecisionOptimizer(model, loss_scale=[1])  # type: ignore[arg-type]
    mixprec.recompute(3)  # type: ignore[type-var]
    mixprec.convret(model)  # type: ignore[attr-defined]

"""A model in 16 bits under an optimizer of Chainer's own: it is said, once and by name, that there are no masters."""

import copy
import pickle

import chainer
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers

import mixprec
import mixprec.functions
import mixprec.links
from mixprec.precision import without_masters
from tests import mpi


@pytest.fixture
def said(announced):
    """Returns what has been said of masters so far."""
    return lambda: [text for text in announced.messages if "master weights" in text]


def _model():
    return chainer.Sequential(L.Linear(3, 4), L.Linear(4, 2))


def _of_mixprec(dtype):
    return chainer.Sequential(mixprec.links.Linear(3, 4, dtype=dtype), mixprec.links.Linear(4, 2, dtype=dtype))


def _steps(optimizer, steps=1):
    x = np.ones((2, 3), optimizer.target[0].W.dtype)
    for _ in range(steps):
        optimizer.update(lambda: _loss(optimizer.target(x)))


def _loss(y):
    return chainer.functions.sum(mixprec.functions.cast(y, "float32"))


ORDERS = [("float16", "convert, setup"), ("bfloat16", "setup, convert"), ("float16", "setup, update, convert")]


@pytest.mark.parametrize(("compute", "order"), ORDERS)
def test_a_plain_optimizer_of_a_converted_model_is_announced_at_its_first_update(said, order, compute):
    model, optimizer = _model(), optimizers.SGD(1e-5)
    for what in order.split(", "):
        assert said() == []
        if what == "convert":
            mixprec.convert(model, compute=compute)
        elif what == "setup":
            optimizer.setup(model)
        else:
            _steps(optimizer)
    assert said() == []
    _steps(optimizer, 3)
    assert said() == [
        f"SGD updates /0/W and 3 more parameters of Sequential in {compute}, without float32 master weights, so that "
        "small steps are lost: use mixprec.MixedPrecisionOptimizer(optimizer).setup(model) in place of "
        "optimizer.setup(model)"
    ]


@pytest.mark.parametrize(("dtype", "unpickled"), [("float16", False), ("bfloat16", True)])
def test_links_of_mixprec_are_announced_as_well(said, dtype, unpickled):
    model = _of_mixprec(dtype)
    if unpickled:
        model = pickle.loads(pickle.dumps(model))
    _steps(optimizers.Adam().setup(model), 2)
    (message,) = said()
    assert message.startswith(f"Adam updates /0/W and 3 more parameters of Sequential in {dtype}")


def test_only_parameters_that_are_updated_count(said):
    model = chainer.Chain(frozen=mixprec.links.Linear(3, 2, dtype="float16"), free=L.Linear(2, 2))
    optimizer = optimizers.SGD().setup(model)
    model.frozen.disable_update()
    optimizer.update()
    assert said() == []
    optimizer.setup(copy.copy(model))
    model.frozen.W.update_rule.enabled = False
    optimizer.update()
    assert [message.partition(" of ")[0] for message in said()] == ["SGD updates /frozen/b"]


@pytest.mark.parametrize(("batched", "compute"), [(True, "float16"), (False, "bfloat16"), (True, "float32")])
def test_with_masters_nothing_is_announced(said, batched, compute):
    """Also where a hook of the user's has the parameters updated by Chainer, and before they are initialized."""

    class Own(optimizers.SGD):
        pass

    model = chainer.Sequential(L.Linear(None, 4), L.Linear(4, 2))
    mixprec.convert(model, compute=compute)
    optimizer = mixprec.MixedPrecisionOptimizer(Own(), batched=batched).setup(model)
    optimizer.add_hook(lambda optimizer: None, "own")
    _steps(optimizer, 2)
    assert said() == []


def test_chainers_own_masters_are_masters_of_float16_alone(said):
    for dtype, announced in (("float16", 0), ("bfloat16", 1)):
        optimizer = optimizers.SGD()
        optimizer.use_fp32_update()
        _steps(optimizer.setup(_of_mixprec(dtype)))
        assert len(said()) == announced


def test_models_that_mixprec_has_no_part_in_are_the_users_affair(said):
    """Chainer's own float16, float32, a reverted model, and one that is only called."""
    with chainer.using_config("dtype", np.float16):
        _steps(optimizers.SGD().setup(_model()))
    _steps(optimizers.SGD().setup(_model()))
    model = _model()
    mixprec.convert(model)
    model(np.ones((2, 3), np.float32))
    mixprec.revert(model)
    _steps(optimizers.SGD().setup(model))
    assert said() == []


@pytest.mark.slow
def test_the_optimizer_that_chainermn_wraps_is_announced():
    code = """
        import chainer, chainermn, numpy, mixprec
        import logging, sys
        logging.basicConfig(stream=sys.stdout, format="%(message)s")
        communicator = chainermn.create_communicator("naive")
        model = chainer.links.Linear(2, 2)
        mixprec.convert(model)
        optimizer = chainermn.create_multi_node_optimizer(chainer.optimizers.SGD(), communicator).setup(model)
        for _ in range(3):
            optimizer.update(lambda: chainer.functions.sum(model(numpy.ones((1, 2), "float32"))))
    """
    lines = mpi.run(2, code)
    assert len(lines) == 2
    assert all(line.startswith("SGD updates /W and 1 more parameters of Linear in float16") for line in lines)


def test_an_optimizer_is_looked_at_once(monkeypatch):
    looks = []
    monkeypatch.setattr(without_masters, "_look", lambda *found: looks.append(found))
    optimizer = optimizers.SGD().setup(_model())
    _steps(optimizer, 5)
    assert looks == [(optimizer, optimizer.target)]
    other = _model()
    optimizer.setup(other)
    _steps(optimizer, 5)
    assert looks[1:] == [(optimizer, other)]

"""Converted recurrent networks beside other parts of the library: which of these take their nodes, and which do not."""

import io
import types

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizer_hooks, optimizers, serializers

import mixprec
from mixprec.activation_memory import retained
from mixprec.distributed import buckets
from mixprec.functions import recurrent, reset_dropout, watching
from mixprec.functions.recurrent import Recurrent
from mixprec.optimizer import ranks
from tests.comparison import assert_equal
from tests.kfac import references
from tests.kfac.references import assert_near
from tests.stand_ins import rank_threads

LINKS = ["LSTM", "GRU", "NStepLSTM", "NStepBiGRU"]
every_link = pytest.mark.parametrize("link", LINKS)
every_case = pytest.mark.parametrize(("link", "compute"), [(each, "float16") for each in LINKS] + [("GRU", "float32")])


class Net(chainer.Chain):
    """Words, a recurrent link, dropout, and a layer that a cell's program calls in each step."""

    def __init__(self, link):
        super().__init__()
        self.is_stack = link.startswith("NStep")
        with self.init_scope():
            self.embed = L.EmbedID(11, 6)
            self.rnn = getattr(L, link)(*[2, 6, 9, 0.3] if self.is_stack else [6, 9])
            self.out = L.Linear(9 * getattr(self.rnn, "direction", 1), 5)

    def states(self, xs):
        if not self.is_stack:
            self.rnn.reset_state()
            return [F.dropout(self.rnn(self.embed(step)), 0.2) for step in np.stack([x[:4] for x in xs], axis=1)]
        rows = F.split_axis(self.embed(np.concatenate(xs)), np.cumsum([len(x) for x in xs])[:-1], 0)
        return [F.concat(self.rnn(*[None] * (1 + (self.rnn.n_cells == 2)), rows)[-1], axis=0)]

    def forward(self, xs):
        return sum(F.mean(F.log_softmax(self.out(state))[:, 0]) for state in self.states(xs)) * -0.1


def words(seed, lengths=(4, 7, 4, 5)):
    random = np.random.RandomState(seed)
    return [random.randint(0, 11, length).astype(np.int32) for length in lengths]


def seeded(link):
    np.random.seed(0)
    return Net(link)


def built(link, compute, rule=None, prepare=lambda model: None, **settings):
    """Returns the optimizer of a converted model, with hooks that change gradients in place."""
    model = seeded(link)
    optimizer = mixprec.MixedPrecisionOptimizer(rule or optimizers.Adam(0.01), 2.0**8, **settings).setup(model)
    mixprec.convert(model, compute=compute)
    optimizer.add_hook(optimizer_hooks.WeightDecay(1e-3))
    optimizer.add_hook(optimizer_hooks.GradientClipping(0.5))
    prepare(model)
    return optimizer


def train(optimizer, steps=3, batch=words):
    """Returns gradients, losses, parameters, masters and states of the rule, by name."""
    found, model = {}, optimizer.target
    np.random.seed(1)
    reset_dropout()
    for step in range(steps):
        loss = []
        optimizer.update(lambda step=step, loss=loss: loss.append(model(batch(step))) or loss[0])
        found[f"loss {step}"] = loss[0].array.copy()
        found |= {f"gradient of {name} {step}": param.grad.copy() for name, param in model.namedparams()}
    serializers.DictionarySerializer(found).save(optimizer)
    return found | {name: param.array for name, param in model.namedparams()}


@every_link
def test_kfac_takes_linear_layers_also_of_cells(link):
    """All their uses count, as in double precision. Other recurrent parameters are left to the rule, and embeddings."""
    plain = [seeded(link) for _ in range(2)]
    with chainer.using_config("train", False):
        expected = references.step(references.doubled(plain[0]), lambda model: model(words(0)), 0.1)[1]
        plain[1].cleargrads()
        plain[1](words(0)).backward()
        optimizer, kfac = references.wrapped(seeded(link))
        seen = references.seen_by_hooks(optimizer)
        optimizer.update(optimizer.target, words(0))
    names = [name for name in kfac._collector.layers if name != "/out/W"]
    assert bool(names) == (not link.startswith("NStep"))
    assert "/embed/W" not in names
    for name, param in plain[1].namedparams():
        is_layer = name in ("/out/W", "/out/b") or f"{name[:-1]}W" in names
        assert_near(seen.found[name], expected[name] if is_layer else param.grad, 1e-4, name)


@every_case
@pytest.mark.parametrize("part", ["all", "states", "rnn"])
def test_recomputation(link, compute, part):
    """Also of dropout between layers. Steps of a cell that are recomputed one by one add their gradients in turn."""

    def prepare(model):
        if part == "states":
            model.states = mixprec.recompute(model.states)
        else:
            mixprec.recompute(model.rnn if part == "rnn" else model)

    found, expected = train(built(link, compute, prepare=prepare)), train(built(link, compute))
    if part != "rnn" or link.startswith("NStep"):
        assert_equal(found, expected)
    for name in [name for name in expected if name.endswith(" 0")]:
        assert_near(found[name], expected[name], 2e-3 if compute == "float16" else 1e-5, name)


@every_case
def test_offloading(link, compute, tmp_path):
    with mixprec.offload("100 GB", to=tmp_path, smallest=64):
        found = train(built(link, compute))
    assert_equal(found, train(built(link, compute)))


@every_link
def test_what_offloading_moves_and_repeats(link):
    """All that a node keeps; a node that is repeated leaves it as it is."""

    def made(node, results):
        if type(node) is Recurrent:
            kept, before = [*node._saved, node._y], dict(vars(node))
            moved = [id(array) for _, array in retained.references_of(node)]
            assert {id(array) for array in kept if array is not None} <= set(moved)
            again = retained.again(node)
            again.forward(tuple(map(retained.array_of, node.inputs)))
            for found, expected in zip([*again._saved, again._y], kept, strict=True):
                np.testing.assert_array_equal(found, expected)
            assert all(vars(node)[name] is value for name, value in before.items())
            seen.append(node)

    seen, optimizer = [], built(link, "float16")
    with watching.watch(made):
        optimizer.target(words(0))
    assert seen


@every_link
def test_two_ranks_with_sequences_of_other_lengths(link, monkeypatch):
    """The step is that of one process with the mean of both losses."""
    monkeypatch.setattr(ranks, "MpiTransport", rank_threads.ThreadTransport)
    monkeypatch.setattr(buckets, "MOST", 64)
    batches = [lambda step, rank=rank: words(10 * rank + step, ((4, 7, 4, 5), (6, 5))[rank]) for rank in range(2)]

    def run(rank, of_threads):
        with chainer.using_config("train", False):
            communicator = types.SimpleNamespace(mpi_comm=of_threads, rank=rank)
            optimizer = built(link, "float32", optimizers.SGD(0.1), communicator=communicator)
            return train(optimizer, batch=batches[rank])

    first, second = rank_threads.run(2, run)
    with chainer.using_config("train", False):
        optimizer = built(link, "float32", optimizers.SGD(0.1))
        model, forward = optimizer.target, optimizer.target.forward
        model.forward = lambda step: sum(forward(batch(step)) for batch in batches) / 2
        expected = train(optimizer, batch=lambda step: step)
    for name, param in model.namedparams():
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)
        assert_near(first[name], param.array, 1e-5, name)
        assert_near(first[f"gradient of {name} 0"], expected[f"gradient of {name} 0"], 1e-5, name)


@every_case
@pytest.mark.parametrize("rule", [optimizers.SGD, optimizers.Adam])
def test_masters(link, compute, rule, monkeypatch):
    """Updates do not depend on where gradients lie, files go on, and plain Chainer takes the weights."""
    optimizer, other, plain = built(link, compute, rule(0.01)), built(link, compute, rule(0.01)), Net(link)
    train(optimizer, 2)
    copied(optimizer.target, other.target)
    copied(optimizer, other)
    expected, rows, parts = train(optimizer), recurrent.parts_of, []

    def apart(array, ends):
        parts.extend(rows(array, ends))
        return [part.copy() for part in rows(array, ends)]

    monkeypatch.setattr(recurrent, "parts_of", apart)
    assert_equal(train(other), expected)
    assert bool(parts) == link.startswith("NStep")
    copied(other.target, plain)
    mixprec.revert(other.target)
    with chainer.using_config("train", False):
        np.testing.assert_array_equal(other.target(words(9)).array, plain(words(9)).array)


def copied(source, target):
    file = io.BytesIO()
    serializers.save_npz(file, source)
    file.seek(0)
    serializers.load_npz(file, target)

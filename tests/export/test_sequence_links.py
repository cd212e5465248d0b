"""Recurrent links in ONNX graphs, with a batch of any size: operators for layers over sequences, cells step by step."""

import copy

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

pytest.importorskip("onnx", reason="ONNX is not installed: extra export")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: extra export")

import mixprec
import mixprec.export
from mixprec.export.export_error import ExportError
from mixprec.export.onnx_file import to_half
from tests.export.test_onnx_file import BATCHES, assert_close, expected, found, operators

WORDS, COLUMNS, UNITS = 11, 6, 9


def stacked(net, x):
    last, *_, ys = net.call(list(net.embed(x)))
    return net.out(F.stack(ys), n_batch_axes=2), last


def joined(net, x):
    rows = F.split_axis(net.embed(F.concat(F.separate(x), axis=0)), len(x), 0)
    return net.out(F.concat(net.call(rows)[-1], axis=0))


def twice(net, x):
    *last, ys = net.call(F.separate(net.embed(x)))
    return net.out(F.stack(net.rnn(*last, F.separate(F.stack(ys)[:, :, :COLUMNS]))[-1])[:, 0])


def steps(net, x):
    net.rnn.reset_state()
    for step in range(x.shape[1]):
        h = net.rnn(net.embed(x[:, step]))
    return net.out(h)


class Net(chainer.Chain):
    def __init__(self, link, program, *sizes):
        super().__init__()
        self.program = program
        with self.init_scope():
            self.embed = L.EmbedID(WORDS, COLUMNS)
            self.rnn = getattr(L, link)(*sizes)
            self.out = L.Linear(UNITS * getattr(self.rnn, "direction", 1), 4)
        for param in self.params():
            param.array[...] = np.random.RandomState(param.size).normal(0, 0.5, param.shape)

    def call(self, rows):
        return self.rnn(*[None] * (1 + (self.rnn.n_cells == 2)), rows)

    def forward(self, x):
        return self.program(self, x)


ROWS = np.random.RandomState(0).randint(0, WORDS, (4, 5)).astype(np.int32)


NETWORKS = [
    *(("NStepLSTM", stacked, 2, "LSTM"), ("NStepBiLSTM", twice, 2, "LSTM"), ("NStepGRU", twice, 1, "GRU")),
    *(("NStepBiGRU", joined, 2, "GRU"), ("NStepRNNTanh", joined, 1, "RNN"), ("NStepBiRNNReLU", stacked, 1, "RNN")),
    *(("LSTM", steps, 0, None), ("GRU", steps, 0, None)),
]


@pytest.mark.parametrize("converted", [False, True])
@pytest.mark.parametrize(("link", "program", "layers", "operator"), NETWORKS)
def test_numbers_and_operators(link, program, layers, operator, converted):
    plain = Net(link, program, *([layers, COLUMNS, UNITS, 0.5] if layers else [COLUMNS, UNITS]))
    model = copy.deepcopy(plain)
    if converted:
        mixprec.MixedPrecisionOptimizer(chainer.optimizers.SGD()).setup(model)
        mixprec.convert(model)
    graph = mixprec.export.onnx(model, ROWS)
    for batch in BATCHES:
        rows = np.resize(ROWS, (batch, 5))
        assert_close(found(graph, rows), expected(plain, rows))
        assert_close(found(to_half(graph), rows), expected(plain, rows), 1e-2)
    own = [name for name in operators(graph) if name in ("LSTM", "GRU", "RNN")]
    assert own == [operator] * layers * (1 + (program is twice))


def reversed_rows(net, x):
    return F.stack(net.call(list(net.embed(x))[::-1])[-1])


def of_two_lengths(net, x):
    return net.call([row[: 2 + index % 2] for index, row in enumerate(net.embed(x))])[0]


def one_state(net, x):
    return net.rnn(None, np.zeros((1, len(x), UNITS), np.float32), list(net.embed(x)))[0]


@pytest.mark.parametrize("program", [reversed_rows, of_two_lengths, one_state])
def test_other_programs_are_errors(program):
    message = "^NStepLSTM of /rnn cannot be exported: .* all rows of one array, .* first states must be None, or all"
    with pytest.raises(ExportError, match=message):
        mixprec.export.onnx(Net("NStepLSTM", program, 1, COLUMNS, UNITS, 0.0), ROWS)

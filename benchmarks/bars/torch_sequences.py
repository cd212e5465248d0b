"""The tasks on sequences in PyTorch: the same sizes, batches and losses, with ``torch.nn.LSTM``.

Sentences and utterances are packed before the first step, and embeddings and losses take packed words. That is in
PyTorch's favour: a training loop packs each batch.
"""

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pack_sequence

from benchmarks.bars import sequences
from benchmarks.bars.sequences import DROPOUT_BETWEEN, LAYERS, UNITS, VOCABULARY
from benchmarks.bars.timed_step import LR
from benchmarks.bars.torch_step import CpuStep, GpuStep, device_of


class LanguageModel(nn.Module):
    """See :class:`benchmarks.bars.sequences.LanguageModel`; the words are one tensor (STEPS + 1, N)."""

    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(VOCABULARY, UNITS), nn.Linear(UNITS, VOCABULARY)
        self.lstm, self.dropout = nn.LSTM(UNITS, UNITS, 2, dropout=sequences.DROPOUT), nn.Dropout(sequences.DROPOUT)

    def forward(self, words):
        hidden, _ = self.lstm(self.dropout(self.embed(words[:-1])))
        return len(hidden) * cross_entropy(self.out(self.dropout(hidden)).flatten(0, 1), words[1:].flatten())


class Translation(nn.Module):
    """See :class:`benchmarks.bars.sequences.Translation`; the arguments are packed sequences."""

    def __init__(self):
        super().__init__()
        self.source, self.target = nn.Embedding(VOCABULARY, UNITS), nn.Embedding(VOCABULARY, UNITS)
        self.encoder, self.decoder = (nn.LSTM(UNITS, UNITS, LAYERS, dropout=DROPOUT_BETWEEN) for _ in range(2))
        self.out = nn.Linear(UNITS, VOCABULARY)

    def forward(self, sources, read, predicted):
        _, state = self.encoder(sources._replace(data=self.source(sources.data)))
        hidden, _ = self.decoder(read._replace(data=self.target(read.data)), state)
        return cross_entropy(self.out(hidden.data), predicted.data)


class FrameClassifier(nn.Module):
    """See :class:`benchmarks.bars.sequences.FrameClassifier`; the arguments are packed sequences."""

    def __init__(self):
        super().__init__()
        self.layers = nn.LSTM(sequences.INPUTS, sequences.HIDDEN, LAYERS, bidirectional=True)
        self.out = nn.Linear(2 * sequences.HIDDEN, sequences.CLASSES)

    def forward(self, utterances, labels):
        return cross_entropy(self.out(self.layers(utterances)[0].data), labels.data)


NETWORKS = {"lm": LanguageModel, "seq2seq": Translation, "blstm": FrameClassifier}


def make(way, task):
    """Makes the step of a way to train on one batch of noise, see :func:`benchmarks.bars.torch_step.make`."""
    device, name = device_of(way, task.specifier), sequences.SEQUENCES[task.arch].optimizer
    batch = [_tensor(array).to(device) for array in sequences.batch_of(task.arch, task.batch)[0]]
    network = NETWORKS[task.arch]().to(device)
    further = {"capturable": True} if way.graph and name == "Adam" else {}
    optimizer = getattr(torch.optim, name)(network.parameters(), lr=LR, fused=way.fused, **further)
    kind = CpuStep if device.type == "cpu" else GpuStep
    return kind.of(way, network, device.type, optimizer, lambda: network(*batch))


def _tensor(array):
    if isinstance(array, list):
        return pack_sequence([_tensor(each) for each in array], enforce_sorted=False)
    return torch.from_numpy(array if array.dtype == np.float32 else array.astype(np.int64))

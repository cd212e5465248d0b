"""A network that sends a signal to its process, in a module that processes of tests import quickly."""

import os
import signal

import chainer
import chainer.functions as F
import chainer.links as L


class Tiny(chainer.Chain):
    """A network that sends a signal to its process in its n-th call of the training run."""

    number, place, calls = None, None, 0
    then = staticmethod(lambda: None)

    def __init__(self, classes):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(3, 4, 3, nobias=True)
            self.norm = L.BatchNormalization(4)
            self.linear = L.Linear(4, classes)

    def forward(self, x):
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:  # the run has begun
            Tiny.calls += 1
            if Tiny.calls == Tiny.place:
                os.kill(os.getpid(), Tiny.number)
                Tiny.then()
        h = F.relu(self.norm(self.conv(x)))
        return self.linear(F.average_pooling_2d(h, h.shape[2:]))

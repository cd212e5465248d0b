"""A captured step that calls Chainer's own dropout over the bridge: its random state is one of those that are known."""

import chainer
import pytest

from mixprec.bridge.functions import DropoutStates
from tests.graph_capture.captured_runs import Run
from tests.stand_ins.capture_sides import device, host  # noqa: F401

pytestmark = pytest.mark.usefixtures("host")


class Dropout(chainer.FunctionNode):
    """What Chainer's ``Dropout`` and ``DropoutGradCuDNN`` do on a GPU."""

    def __init__(self, states):
        self._states = states

    def forward(self, inputs):
        self._space, y = self._states.forward(None, inputs[0], 0.5)
        return (y,)

    def backward(self, indexes, gradients):
        (gy,) = gradients
        return (chainer.Variable(self._states.backward(None, gy.array, 0.5, self._space)),)


def test_chainers_own_dropout():
    states = DropoutStates(None, 5)

    def lossfun(model, x, t):
        (x,) = Dropout(states).apply((x,))
        return model(x, t)

    run = Run({"required": True}, lossfun=lossfun)
    run.run(range(8))
    assert run.step.why_not is None
    assert run.step.replays >= 2

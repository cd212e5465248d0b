"""Steps of a network with recomputed blocks, captured or not, leave the bits of steps that keep all."""

import pytest

import mixprec
from tests.graph_capture.captured_runs import REQUIRED, Network, Run, assert_same
from tests.stand_ins.capture_sides import device, host  # noqa: F401  (fixtures)

STEPS = 11  # the step of number 9 overflows


class Blocks(Network):
    """Each block is recomputed."""

    def __init__(self, dropout):
        super().__init__(dropout)
        for block in self.stages:
            mixprec.recompute(block)


def _of_two(model, x, t):
    yield model(x, t) / 2
    yield model(x[::-1], t) / 2


@pytest.mark.slow
@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(("wishes", "lossfun"), [(None, None), ({**REQUIRED, "second_stream": True}, _of_two)])
def test_a_captured_step_leaves_the_same(wishes, lossfun):
    plain = None if lossfun is None else REQUIRED  # that side has nothing for an iterator of losses
    expected = Run(plain, dropout=0.3, lossfun=lossfun).run(range(STEPS)).results()
    found = Run(wishes, network=Blocks, dropout=0.3, lossfun=lossfun).run(range(STEPS))
    assert found.step is None or found.step.replays == STEPS - 5
    assert_same(found, expected)

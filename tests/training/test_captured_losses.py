"""A loss of the user's own, and class weights, in steps that are one graph: bit for bit as in eager ones."""

import re

import numpy as np
import pytest

from mixprec.app.parts.model import ImageClassifier
from mixprec.app.parts.training_loss import OwnLoss
from mixprec.training.accumulation import Accumulated, Weighing
from tests import ROOT
from tests.graph_capture.captured_runs import CLASSES, FIRST_REPLAY, REQUIRED, Run, assert_same, batch
from tests.stand_ins.capture_sides import device, gpu, gpu_of_module, host, side  # noqa: F401  (fixtures)
from tests.stand_ins.cuda_sides import both_sides
from tests.training.test_accumulation import Eager

PAGE = (ROOT / "docs" / "own-network.md").read_text().partition("\n## Own losses")[2]
WEIGHTS = np.linspace(0.5, 5, CLASSES).astype(np.float32)


def _focal():
    parts = {}
    exec(re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1], parts)
    return OwnLoss(parts["focal"])


@pytest.mark.slow
@both_sides
@pytest.mark.parametrize("weighted", [True, False], ids=["weights", "own"])
def test_captured_steps_of_several_batches_are_eager_ones(side, weighted):  # noqa: F811
    def classifier(network):
        return ImageClassifier(network, own=None if weighted else _focal())

    def lossfun(model, batches):
        return Accumulated(model, Weighing(model.weight, np.asarray) if weighted else None)(batches)

    def steps(run, send):
        run.model.class_weights = side.send(WEIGHTS) if weighted else None
        for number in range(FIRST_REPLAY + 3):
            run.set_rate(number)
            batches = [batch(10 * number + place, 4) for place in range(2)]
            batches[1][1][1:] = -1
            run.once([tuple(map(send, arrays)) for arrays in batches])
        return run

    options = {"classifier": classifier, "lossfun": lossfun, "side": side}
    captured = steps(Run(REQUIRED, **options), np.copy)
    assert captured.step.replays == 3
    assert_same(captured, steps(Eager(**options), side.send))

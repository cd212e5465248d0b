"""On a CUDA device: the batched update beside Chainer's own on NumPy. Run by ``pytest -m gpu``."""

import numpy as np
import pytest

from mixprec.backends.launch import CupyLauncher
from mixprec.base.dtypes import BFLOAT16
from tests.stand_ins.update_twin import HOOKS, SIZES, STEPS, Twin, closely, exactly, of_all_rules, run

pytestmark = pytest.mark.gpu

# Their numbers are the hyperparameters: nothing that the functions of two platforms may round in two ways.
EXACT = ("SGD", "MomentumSGD", "CorrectedMomentumSGD", "NesterovAG", "AdaGrad", "AdaDelta", "RMSprop", "RMSpropGraves")
EXACT += ("RMSprop, eps inside", "SMORMS3", "LARS, not adapted")


DTYPES = (np.float16, BFLOAT16, np.float32)
SPIN = """
extern "C" __global__ void spin(long long clocks) {
    for (const long long start = clock64(); clock64() - start < clocks;) {}
}
"""


class CountingLauncher(CupyLauncher):
    def __init__(self, device):
        super().__init__(device)
        self.launches = []
        self.uploads = []

    def launch(self, kernel, blocks, arguments):
        super().launch(kernel, blocks, arguments)
        self.launches.append(blocks)

    def upload(self, source, target):
        super().upload(source, target)
        self.uploads.append(source.nbytes)


def twin(params, hooks=(), rule_hooks=(), send=None):
    import cupy

    return Twin(CountingLauncher(0), send or cupy.asarray, cupy.asnumpy, params, hooks, rule_hooks)


@pytest.mark.parametrize("hooks", ["none", "lasso and hard clipping"])
def test_rules_are_chainers_bit_for_bit(hooks):
    params = [(name, size, dtype) for name in EXACT for size in SIZES for dtype in DTYPES]
    run(twin(params, HOOKS[hooks]), exactly)


@pytest.mark.parametrize("hooks", HOOKS)
def test_all_rules_with_hooks_are_chainers(hooks):
    both = twin(of_all_rules(), HOOKS[hooks])
    run(both, closely)
    assert len(both.launcher.launches) == (both.batch._passes + 1) * STEPS
    assert both.batch._passes + 1 == (3 if hooks in ("lars and decay", "decay and clipping") else 2)


@pytest.mark.parametrize("name", ["SGD", "Adam", "LARS", "LAMB"])
def test_parameters_of_many_blocks(name):
    both = twin([(name, size, dtype) for size in (1, 3_000_017, 64) for dtype in DTYPES])
    run(both, closely, steps=4, skipped={1})


def test_arrays_that_are_not_aligned():
    import cupy

    def send(value):
        view = cupy.zeros(value.size + 3, value.dtype)[3:].reshape(value.shape)
        view[...] = cupy.asarray(value)
        return view

    run(twin([("MomentumSGD", size, dtype) for size in SIZES for dtype in DTYPES], send=send), exactly)


def test_a_step_runs_on_the_current_stream_and_waits_for_nothing():
    """While the stream is busy the host is through with the step, and its results are there when the stream is."""
    import cupy

    both = twin([("CorrectedMomentumSGD", 1_000_003, np.float16)] * 4)
    gradients = both.gradients()
    cupy.cuda.Device().synchronize()  # a stream that does not block does not wait for the one of the twin either
    spin = cupy.RawKernel(SPIN, "spin")
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        spin((1,), (1,), (1,))
        both.set_gradients(gradients)
        expected = both.expect(gradients, 1)
        both.batch.check()  # compiled, allocated
        stream.synchronize()
        spin((1,), (1,), (10**9,))  # half a second
        after = cupy.cuda.Event()
        both.batch.check()
        both.batch.update()
        after.record()
        assert not after.done
        stream.synchronize()
        exactly(both, expected, None)

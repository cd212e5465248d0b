"""What a step with NCCL asks a device for, on a stand-in that takes notes: launches, bytes, reads."""

import functools

import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers

import mixprec
from benchmarks.recording_device import null_device
from mixprec.backends.device_log import recording
from mixprec.distributed import buckets
from mixprec.graph_capture.cuda_graphs import graphs_of
from models import MODELS
from tests.stand_ins.twin_transport import COMMUNICATOR

slow = functools.partial(pytest.param, marks=pytest.mark.slow)


def _records(communicator, **settings):
    """Returns the model and the records of a step."""
    null_device.install()
    np.random.seed(0)
    model = L.Classifier(MODELS["resnet8"]())
    mixprec.convert(model, np.zeros((2, 3, 32, 32), np.float32))
    null_device.send(model)
    rule = optimizers.MomentumSGD()
    optimizer = mixprec.MixedPrecisionOptimizer(rule, communicator=communicator, **settings).setup(model)
    x, t = null_device.array(np.zeros((2, 3, 32, 32), np.float32)), null_device.array(np.zeros(2, np.int32))
    with graphs_of(x).on_stream():
        for _ in range(3):
            with recording() as records:
                optimizer.update(model, x, t)
    return model, records


@pytest.mark.usefixtures("twins")
@pytest.mark.parametrize("dtype", [None, slow("float32")])
def test_two_launches_for_a_bucket_and_one_pass_over_gradients(dtype, monkeypatch):
    """The kernels of the update read the arena only; rounding is one launch for all buckets. Nothing is read."""
    monkeypatch.setattr(buckets, "MOST", 2**15)
    launches = ("kernel", "array", "cudnn", "nccl")
    model, plain = _records(None)
    model, records = _records(COMMUNICATOR, allreduce_dtype=dtype)
    packs = [record for record in records if record.name == "pack"]
    sums = [record for record in records if record.kind == "nccl"]
    rounds = int(dtype == "float32")
    assert len(packs) == len(sums) + rounds > 4
    others = [record.name for record in records if record.kind in launches and record not in (*packs, *sums)]
    assert others == [record.name for record in plain if record.kind in launches]
    assert not [record for record in records if record.kind in ("upload", "read")]  # addresses stay: no table either

    gradients = [row for record in packs[: len(sums)] for row in _rows(record)]
    assert len(gradients) == len(list(model.params()))
    assert sum(size for _, size in gradients) == sum(param.size for param in model.params())
    assert len({address for address, _ in gradients}) == len(gradients)
    arenas = [(record.arguments[0], record.arguments[0] + record.arguments[2] * 4) for record in sums]
    own = {param.grad.ctypes.data for param in model.params()}
    assert not own & {address for address, _ in gradients}
    if not rounds:
        assert all(any(start <= address < end for start, end in arenas) for address in own)


def _rows(record):
    """Returns ``[(address, size)]`` of a launch of the kernel that packs; its last four arguments are no rows."""
    numbers = record.arguments[1:]
    count = numbers[-4]
    return list(zip(numbers[: 3 * count : 3], numbers[1 : 3 * count : 3], strict=True))

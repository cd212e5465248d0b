"""The rows of PyTorch: its networks are Chainer's, its steps train as Chainer's do, and what is missing has a name."""

import os
import pickle
import subprocess
import sys

import chainer
import chainer.functions as F
import numpy as np
import pytest
from chainer import optimizer_hooks, optimizers

from benchmarks.bars import pytorch_rows, row_worker
from benchmarks.bars.pytorch_rows import PyTorchSettings
from benchmarks.bars.row_worker import Task
from benchmarks.processes import Worker
from models import MODELS
from tests.cases import first

pytestmark = pytest.mark.slow

GPU = "@cupy:0"
STOCK = PyTorchSettings("float32", channels_last=False, fused=False)
_NAMES = {"W": "weight", "b": "bias", "gamma": "weight", "beta": "bias"}


@pytest.fixture
def torch():
    """Rows set what counts for the whole process."""
    module = pytest.importorskip("torch", reason="torch is not installed")
    cudnn, matmul, threads = module.backends.cudnn, module.backends.cuda.matmul, module.get_num_threads()
    before = cudnn.benchmark, cudnn.benchmark_limit, cudnn.allow_tf32, matmul.allow_tf32
    yield module
    module.set_num_threads(threads)
    cudnn.benchmark, cudnn.benchmark_limit, cudnn.allow_tf32, matmul.allow_tf32 = before


@pytest.fixture
def torch_step(torch):
    from benchmarks.bars import torch_step

    return torch_step


def _leaves(link, path=""):
    """Yields links without children by their names in PyTorch.

    Chainer 7.8.1 gives the links of a ``Sequential`` names that are not their places: 0, and then from the last one on.
    """
    if isinstance(link, chainer.Sequential):
        children = [(str(place), child) for place, child in enumerate(link)]
    else:
        children = [(child.name, child) for child in link.children()]
    for name, child in children:
        yield from _leaves(child, f"{path}{name}.")
    if not children:
        yield path, link


def _params(model):
    """Returns the parameters of a Chainer model by their names in PyTorch."""
    return {f"{path}{_NAMES[name[1:]]}": param for path, link in _leaves(model) for name, param in link.namedparams()}


def _arrays(model):
    """Returns parameters and statistics of a Chainer model by their names in PyTorch."""
    arrays = {name: param.array for name, param in _params(model).items()}
    for path, link in _leaves(model):
        if isinstance(link, chainer.links.BatchNormalization):
            arrays |= {f"{path}running_mean": link.avg_mean, f"{path}running_var": link.avg_var}
    return arrays


def _task(arch="resnet18", batch=4, size=32, specifier="@numpy"):
    return Task(arch, MODELS[arch], specifier, batch, size)


# The networks


@pytest.mark.parametrize("arch", pytorch_rows.ARCHS)
def test_parameters_and_statistics_correspond_one_to_one(arch, torch, monkeypatch):
    from benchmarks.bars import torch_resnet

    monkeypatch.setattr(chainer.initializers.HeNormal, "__call__", lambda self, array: None)
    with torch.device("meta"):
        own = {name: tuple(tensor.shape) for name, tensor in torch_resnet.network(arch).state_dict().items()}
    assert own == {name: array.shape for name, array in _arrays(MODELS[arch](1000)).items()}


# How much further from float64 a library may be than another one in the same dtype. Sums in another order, with or
# without fused products, differ by a small factor; a wrong step differs by orders of magnitude.
WORSE = 16
# Of the distance between float32 and float64 in one library, what two libraries may differ by in float64.
SHARE = 2 * WORSE * np.finfo(np.float64).eps / np.finfo(np.float32).eps


def _distance(found, exact):
    """Returns the Euclidean distance of two arrays."""
    return np.linalg.norm(np.subtract(found, exact, dtype=np.float64))


# Steps on the CPU


class _ChainerStep:
    """The step of PyTorch in plain Chainer, written out: momentum, weight decay of weights, label smoothing."""

    def __init__(self, step, arch, dtype, lr):
        with chainer.using_config("dtype", dtype):
            self.model = MODELS[arch](1000)
        for name, array in _arrays(self.model).items():
            array[...] = step.network.state_dict()[name].numpy()
        self._optimizer = optimizers.CorrectedMomentumSGD(lr=lr, momentum=0.875).setup(self.model)
        for param in self.model.params():
            if param.ndim > 1:
                param.update_rule.add_hook(optimizer_hooks.WeightDecay(1 / 32768))
        self._x, self._t = step.images.numpy().astype(dtype), step.labels.numpy()

    def __call__(self):
        """Trains; returns logits and loss."""
        logits = self.model(self._x)
        logs = F.log_softmax(logits)
        loss = -0.9 * F.mean(F.select_item(logs, self._t)) - 0.1 * F.mean(logs)
        self.model.cleargrads()
        loss.backward()
        self._optimizer.update()
        return logits.array, float(loss.array)


def _in_float64(step):
    """Makes float64 of all that a step has."""
    step.network.double()
    step.images = step.images.double()
    for state in step.optimizer.state.values():
        state["momentum_buffer"] = state["momentum_buffer"].double()
    return step


@pytest.mark.parametrize(("arch", "size"), first(0, [("resnet18", 64), ("resnet50", 32), ("resnext50_32x4d", 32)], 1))
def test_losses_weights_and_statistics_are_those_of_plain_chainer(arch, size, torch_step):
    """In float64: in float32 a ReLU, whose input is near 0, may be open in one library and closed in the other."""
    step = torch_step.make(STOCK, arch, "@numpy", 4, size)
    for group in step.optimizer.param_groups:
        group["lr"] = 0.001  # with which weights change
    _in_float64(step)
    single, double = (_ChainerStep(step, arch, dtype, 0.001) for dtype in (np.float32, np.float64))
    for _ in range(3 if arch == "resnet18" else 1):
        (near, _), (exact, loss) = single(), double()
        step()
        # If no logit moves by more than d, no loss does by more than 2 d.
        assert abs(float(step.loss) - loss) <= 2 * SHARE * _distance(near, exact)
    near, exact = _arrays(single.model), _arrays(double.model)
    found = {name: tensor.detach().numpy() for name, tensor in step.network.state_dict().items()}
    assert found.keys() == exact.keys()
    for name, value in found.items():
        assert _distance(value, exact[name]) <= SHARE * _distance(near[name], exact[name]), name


@pytest.mark.parametrize("name", [name for name, way in pytorch_rows._ON_CPU.items() if way.compile is None])
def test_every_eager_row_of_the_cpu_trains_in_blocks(name, torch):
    step = {bar.name: bar for bar in pytorch_rows.bars("@numpy")}[name].make(_task())
    before = step.network.conv1.weight.detach().clone()
    step()
    first = float(step.loss)
    for _ in range(2):
        step.warm_up()
        for _ in range(2):
            step()
        step.synchronize()
        assert step.peak() > 50e6  # bytes: weights, gradients and momenta alone are more
        step.release()
    assert float(step.loss) < first - 1
    assert not torch.equal(step.network.conv1.weight, before)
    assert all(param.dtype is torch.float32 and param.grad is None for param in step.network.parameters())
    assert str(step.images.dtype) == f"torch.{pytorch_rows._ON_CPU[name].precision}"


def test_layout_threads_and_decay(torch, torch_step, monkeypatch):
    """The row sets the layout, threads are as in the other rows, weights decay, and nothing else changes."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(2)
    for channels_last, layout in ((False, torch.contiguous_format), (True, torch.channels_last)):
        way = PyTorchSettings("float32", channels_last=channels_last)
        step = torch_step.make(way, "resnet18", "@numpy", 2, 32)
        weight = step.network.layer1[0].conv1.weight
        for tensor in (step.images, weight, step.optimizer.state[weight]["momentum_buffer"]):
            assert tensor.is_contiguous(memory_format=layout)
    assert torch.get_num_threads() == 1
    decayed, others = step.optimizer.param_groups
    assert (decayed["weight_decay"], others["weight_decay"]) == (1 / 32768, 0)
    names = {id(param): name for name, param in step.network.named_parameters()}
    weights, rest = ({names[id(param)] for param in group["params"]} for group in (decayed, others))
    assert weights.isdisjoint(rest)
    assert weights | rest == set(names.values())
    assert len(weights) == 20 + 1  # convolutions, and the last layer
    assert not any("bn" in name or name.endswith("bias") for name in weights)


def _small(torch, kind, way):
    """Returns a step of a class on a network of three layers, on the CPU."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Flatten(), torch.nn.Linear(8 * 6 * 6, 10)
    )
    return kind(way, network, torch.randn(4, 3, 8, 8), torch.arange(4))


# Loss scaling


def _reads_in_a_step(torch, step):
    """Returns how often a step asks the device for a number: what a CUDA graph cannot have in it."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Reads(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.count += function is torch.ops.aten._local_scalar_dense.default
            return function(*args, **(kwargs or {}))

    with Reads() as reads:
        step()
    return reads.count


@pytest.mark.parametrize(("fused", "reads"), [(True, 0), (False, 1)])
def test_a_first_step_that_overflows_leaves_weights_and_momenta_alone(fused, reads, torch, torch_step):
    """With fused SGD the host does not even read whether it has."""
    step = _small(torch, torch_step.CpuStep, PyTorchSettings("float16", fused=fused))
    images = step.images.clone()
    before = [param.detach().clone() for param in step.network.parameters()]
    step.images[...] = np.inf
    step()
    assert step.scaler.get_scale() == 2.0**15
    for param, old in zip(step.network.parameters(), before, strict=True):
        assert torch.equal(param, old)
        assert not step.optimizer.state[param]["momentum_buffer"].any()
    step.images.copy_(images)
    step.network[1].reset_running_stats()
    assert _reads_in_a_step(torch, step) == reads
    assert step.scaler.get_scale() == 2.0**15
    assert all(param.isfinite().all() for param in step.network.parameters())
    assert not torch.equal(step.network[0].weight, before[0])


# Rows that cannot be measured


def test_without_torch_or_a_gpu_rows_say_so(torch, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert {bar.reason for bar in pytorch_rows.bars(GPU)} == {f"torch {torch.__version__} has no GPU"}
    assert {bar.reason for bar in pytorch_rows.bars("@numpy")} == {""}
    monkeypatch.setitem(sys.modules, "torch", None)
    for specifier in ("@numpy", GPU):
        (reason,) = {bar.reason for bar in pytorch_rows.bars(specifier)}
        assert reason.startswith("torch cannot be imported: ")
        assert reason.endswith('; pip install -e ".[torch]" installs it')


def test_a_broken_torch_is_a_reason_of_one_line_and_nothing_imports_it_before(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise OSError('libtorch.so: no such file\\nand more')\n")
    code = "from benchmarks.bars import pytorch_rows; print('imported'); print(pytorch_rows.bars('@numpy')[0].reason)"
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    installs = 'pip install -e ".[torch]" installs it'
    assert done.stdout == f"imported\ntorch cannot be imported: libtorch.so: no such file; {installs}\n"


def test_a_network_that_pytorch_lacks_is_a_reason():
    (bar, *_) = pytorch_rows.bars("@numpy")
    with pytest.raises(ValueError, match=r"^no resnet8 in PyTorch to compare with; there are resnet18, .*_32x4d$"):
        bar.make(_task("resnet8"))


def test_rows_have_names_go_to_other_processes_and_what_is_a_graph_is_fused():
    """The other update reads a flag on the host under a loss scale; "reduce-overhead" has graphs of its own."""
    for specifier in ("@numpy", GPU):
        bars = pytorch_rows.bars(specifier)
        assert len({bar.name for bar in bars}) == len(bars)
        assert [bar.make.args for bar in pickle.loads(pickle.dumps(bars))] == [bar.make.args for bar in bars]
    graphs = [way for way in pytorch_rows._ON_GPU.values() if way.graph]
    assert len(graphs) == 4
    assert all(way.fused and way.channels_last and way.compile != "reduce-overhead" for way in graphs)


# On a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("name", pytorch_rows._ON_GPU)
def test_every_row_of_a_gpu_runs_blocks(name, torch):
    bar = {bar.name: bar for bar in pytorch_rows.bars(GPU)}[name]
    if bar.reason:
        pytest.skip(bar.reason)
    with Worker() as own:
        own.call(row_worker.prepare, bar, _task(batch=8, size=64, specifier=GPU))
        for _ in range(2):
            assert own.call(row_worker.block, 3).peak > 100e6  # bytes: weights, gradients and momenta alone are more


@pytest.mark.gpu
def test_replays_are_the_eager_steps(torch, torch_step):
    """With a learning rate at which float16's rounding does not grow from step to step."""
    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} has no GPU")
    losses = {}
    for graph in (False, True):
        step = torch_step.make(PyTorchSettings("float16", graph=graph), "resnet18", GPU, 8, 64)
        for group in step.optimizer.param_groups:
            group["lr"] = 1e-4
        step.warm_up()
        if not graph:
            step()  # a capture runs nothing, but a replay follows it
        own = losses[graph] = []
        for _ in range(5):
            step()
            own.append(float(step.loss))
        step.release()
    assert losses[True] == sorted(losses[True], reverse=True)
    layers = 20 + 1  # each rounds to float16, by half a unit, in both
    np.testing.assert_allclose(losses[True], losses[False], rtol=layers * float(np.finfo(np.float16).eps))

"""The rows of PyTorch: its networks are Chainer's, its steps train as Chainer's do, and what is missing has a name."""

import contextlib
import dataclasses
import os
import pickle
import subprocess
import sys

import chainer
import chainer.functions as F
import numpy as np
import pytest
from chainer import optimizer_hooks, optimizers

from benchmarks import compared_optimizers
from benchmarks.bars import pytorch_rows, row_worker
from benchmarks.bars.row_worker import Task
from benchmarks.bars.timed_step import LR
from benchmarks.processes import Worker
from models import MODELS

pytestmark = pytest.mark.slow

GPU = "@cupy:0"
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


@pytest.fixture
def network_of(torch):
    from benchmarks.bars import torch_resnet

    return torch_resnet.network


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
def test_parameters_and_statistics_correspond_one_to_one(arch, torch, network_of, monkeypatch):
    monkeypatch.setattr(chainer.initializers.HeNormal, "__call__", lambda self, array: None)
    with torch.device("meta"):
        own = {name: tuple(tensor.shape) for name, tensor in network_of(arch).state_dict().items()}
    assert own == {name: array.shape for name, array in _arrays(MODELS[arch](1000)).items()}


def test_networks_are_those_of_the_rows(network_of):
    from benchmarks.bars import torch_resnet

    assert tuple(torch_resnet._ARCHS) == pytorch_rows.ARCHS
    with pytest.raises(KeyError):
        network_of("resnet8")


# How much further from float64 a library may be than another one in the same dtype. Sums in another order, with or
# without fused products, differ by a small factor; a wrong step differs by orders of magnitude.
WORSE = 16
# Of the distance between float32 and float64 in one library, what two libraries may differ by in float64.
SHARE = 2 * WORSE * np.finfo(np.float64).eps / np.finfo(np.float32).eps


def _distance(found, exact):
    """Returns the Euclidean distance of two arrays."""
    return np.linalg.norm(np.subtract(found, exact, dtype=np.float64))


def _forward_and_backward(model, images, labels):
    """Returns logits, loss, gradients and statistics of a Chainer model by their names in PyTorch."""
    logits = model(images)
    loss = F.softmax_cross_entropy(logits, labels)
    model.cleargrads()
    loss.backward()
    gradients = {f"gradient of {name}": param.grad for name, param in _params(model).items()}
    statistics = {name: array for name, array in _arrays(model).items() if "running" in name}
    return {"logits": logits.array, "loss": loss.array, **gradients, **statistics}


@pytest.mark.parametrize("arch", ["resnet18", "resnet50", "resnext50_32x4d"])
def test_a_step_forward_and_backward_is_plain_chainers(arch, torch, network_of):
    """In float64, where errors of rounding are to those in float32 as the units of both."""
    rng = np.random.RandomState(0)
    images, labels = rng.normal(size=(4, 3, 64, 64)), np.array([3, 1, 0, 9])
    with chainer.using_config("dtype", np.float64):
        model = MODELS[arch](10)
    network = network_of(arch, 10).double().train()
    for name, array in _arrays(model).items():
        network.state_dict()[name].copy_(torch.from_numpy(array))
    with chainer.using_config("dtype", np.float32):
        single = MODELS[arch](10)
    for name, array in _arrays(single).items():
        array[...] = _arrays(model)[name]

    exact, near = (_forward_and_backward(*each, labels) for each in ((model, images), (single, images.astype("f"))))
    own_logits = network(torch.from_numpy(images))
    own_loss = torch.nn.functional.cross_entropy(own_logits, torch.from_numpy(labels))
    own_loss.backward()

    found = {"logits": own_logits.detach(), "loss": own_loss.detach()}
    found |= {f"gradient of {name}": param.grad for name, param in network.named_parameters()}
    found |= {name: array for name, array in network.state_dict().items() if "running" in name}
    assert len(found) == len(exact) == 2 + sum(1 for _ in model.params()) + len(_arrays(model)) - len(_params(model))
    bounds = {name: SHARE * _distance(near[name], exact[name]) for name in found}
    bounds["loss"] = 2 * bounds["logits"]  # it moves by no more, and one number may be exact by chance
    for name, value in found.items():
        assert _distance(value.numpy(), exact[name]) <= bounds[name], name


def test_initial_values_are_torchvisions(network_of):
    """He's normal distribution over the fan-out; 1 and 0 for batch normalization."""
    network = network_of("resnet18")
    weight = network.layer4[1].conv2.weight.detach().numpy()
    assert weight.std() == pytest.approx(np.sqrt(2 / (512 * 9)), rel=0.01)
    assert (network.bn1.weight == 1).all()
    assert (network.bn1.bias == 0).all()


# Steps on the CPU


class _ChainerStep:
    """The step of PyTorch in plain Chainer, written out: momentum, weight decay of weights, label smoothing."""

    def __init__(self, step, dtype, lr):
        with chainer.using_config("dtype", dtype):
            self.model = MODELS["resnet18"](1000)
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


def test_losses_and_weights_are_those_of_plain_chainer(torch_step):
    """In float64: in float32 a ReLU, whose input is near 0, may be open in one library and closed in the other."""
    step = torch_step.make(
        pytorch_rows.PyTorchSettings("float32", channels_last=False, fused=False), "resnet18", "@numpy", 4, 64
    )
    for group in step.optimizer.param_groups:
        assert group["lr"] == LR
        group["lr"] = 0.001  # with which weights change
    _in_float64(step)
    single, double = (_ChainerStep(step, dtype, 0.001) for dtype in (np.float32, np.float64))
    for _ in range(3):
        (near, _), (exact, loss) = single(), double()
        step()
        # If no logit moves by more than d, no loss does by more than 2 d.
        assert abs(float(step.loss) - loss) <= 2 * SHARE * _distance(near, exact)
    near, exact = _arrays(single.model), _arrays(double.model)
    for name, param in step.network.named_parameters():
        assert _distance(param.detach().numpy(), exact[name]) <= SHARE * _distance(near[name], exact[name]), name


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


def test_layout_is_that_of_the_row(torch, torch_step):
    for channels_last in (False, True):
        step = torch_step.make(
            pytorch_rows.PyTorchSettings("float32", channels_last=channels_last), "resnet18", "@numpy", 2, 32
        )
        layout = torch.channels_last if channels_last else torch.contiguous_format
        assert step.images.is_contiguous(memory_format=layout)
        weight = step.network.layer1[0].conv1.weight
        assert weight.is_contiguous(memory_format=layout)
        assert step.optimizer.state[weight]["momentum_buffer"].is_contiguous(memory_format=layout)


def test_it_has_the_threads_of_the_other_rows(torch, torch_step, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(2)
    torch_step.make(pytorch_rows.PyTorchSettings("float32"), "resnet18", "@numpy", 2, 32)
    assert torch.get_num_threads() == 1


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")  # of torch itself, while it imports its compiler
def test_compiled_steps_are_the_eager_ones(torch, torch_step, tmp_path, monkeypatch):
    """On a network of three layers: a compiler takes a minute for one of eighteen. Both beside a step in float64.

    With a cache of its own: code of another instruction set, taken from the common one, has given NaN and crashes.
    """
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    ways = [pytorch_rows.PyTorchSettings("float32"), pytorch_rows.PyTorchSettings("float32", compile="default")]
    eager, compiled = (_small(torch, torch_step.CpuStep, way) for way in ways)
    exact = _in_float64(_small(torch, torch_step.CpuStep, ways[0]))
    terms = 3 * 3 * 3 + 4 * 6 * 6 + 8 * 6 * 6 + 10  # of sums one after the other: a filter, a channel, a row, classes
    for _ in range(3):
        for step in (eager, compiled, exact):
            step()
        assert float(compiled.loss) == pytest.approx(float(exact.loss), rel=terms * float(np.finfo(np.float32).eps))

    def weights(step):
        return np.concatenate([param.detach().numpy().ravel() for param in step.network.parameters()])

    assert _distance(weights(compiled), weights(exact)) <= WORSE * _distance(weights(eager), weights(exact))


def test_weights_decay_and_nothing_else_does(torch_step):
    step = torch_step.make(pytorch_rows.PyTorchSettings("float32"), "resnet18", "@numpy", 2, 32)
    decayed, others = step.optimizer.param_groups
    assert (decayed["weight_decay"], others["weight_decay"]) == (1 / 32768, 0)
    names = {id(param): name for name, param in step.network.named_parameters()}
    weights = {names[id(param)] for param in decayed["params"]}
    rest = {names[id(param)] for param in others["params"]}
    assert weights | rest == set(names.values())
    assert not weights & rest
    assert {name for name in weights if ".bn" in name or name.startswith("bn") or name.endswith("bias")} == set()
    assert len(weights) == 20 + 1  # convolutions, and the last layer


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
def test_with_fused_sgd_nobody_reads_whether_a_step_has_overflowed(fused, reads, torch, torch_step):
    step = _small(torch, torch_step.CpuStep, pytorch_rows.PyTorchSettings("float16", fused=fused))
    step()
    assert _reads_in_a_step(torch, step) == reads


@pytest.mark.parametrize("fused", [True, False])
def test_a_first_step_that_overflows_leaves_weights_and_momenta_alone(fused, torch, torch_step):
    step = _small(torch, torch_step.CpuStep, pytorch_rows.PyTorchSettings("float16", fused=fused))
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
    step()
    assert step.scaler.get_scale() == 2.0**15
    assert all(param.isfinite().all() for param in step.network.parameters())
    assert not torch.equal(step.network[0].weight, before[0])


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_only_float16_has_a_loss_scale(precision, torch, torch_step):
    assert not _small(torch, torch_step.CpuStep, pytorch_rows.PyTorchSettings(precision)).scaler.is_enabled()


# Rows that cannot be measured


@pytest.mark.parametrize("specifier", ["@numpy", GPU])
def test_without_torch_rows_say_how_to_get_it(specifier, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    bars = pytorch_rows.bars(specifier)
    reasons = {bar.reason for bar in bars}
    assert len(bars) >= 4
    assert len(reasons) == 1
    (reason,) = reasons
    assert reason.startswith("torch cannot be imported: ")
    assert reason.endswith('; pip install -e ".[torch]" installs it')


def test_a_broken_torch_is_a_reason_of_one_line(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise OSError('libtorch.so: no such file\\nand more')\n")
    code = "from benchmarks.bars import pytorch_rows; print(pytorch_rows.bars('@numpy')[0].reason)"
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    installs = 'pip install -e ".[torch]" installs it'
    assert done.stdout == f"torch cannot be imported: libtorch.so: no such file; {installs}\n"


def test_a_torch_without_gpu_is_a_reason(torch, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert {bar.reason for bar in pytorch_rows.bars(GPU)} == {f"torch {torch.__version__} has no GPU"}
    assert {bar.reason for bar in pytorch_rows.bars("@numpy")} == {""}


def test_a_missing_compiler_is_named_in_one_line(torch, tmp_path):
    code = """if True:
        import torch
        from benchmarks.bars import pytorch_rows, torch_step
        from benchmarks.processes import reason_of
        way = pytorch_rows.PyTorchSettings("float32", compile="default")
        step = torch_step.CpuStep(way, torch.nn.Conv2d(3, 8, 1), torch.ones(2, 3, 4, 4), torch.zeros(2, 4, 4).long())
        try:
            step()
        except Exception as error:
            print(reason_of(error))
    """
    environment = os.environ | {"CXX": "no-such-compiler", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "C++ compiler" in done.stdout
    assert "no-such-compiler" in done.stdout
    assert done.stdout.count("\n") == 1


def test_torch_is_not_imported_before_it_is_asked_for():
    code = "import sys; from benchmarks.bars import pytorch_rows; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_a_network_that_pytorch_lacks_is_a_reason():
    (bar, *_) = pytorch_rows.bars("@numpy")
    with pytest.raises(ValueError, match=r"^no resnet8 in PyTorch to compare with; there are resnet18, .*_32x4d$"):
        bar.make(_task("resnet8"))


def test_bars_go_to_other_processes_and_have_their_place(monkeypatch):
    monkeypatch.setattr(compared_optimizers, "import_torch", lambda: (None, "no torch"))
    for specifier in ("@numpy", GPU):
        bars = pytorch_rows.bars(specifier)
        assert len({bar.name for bar in bars}) == len(bars)
        assert {bar.group for bar in bars} == {"peer"}
        ways = [bar.make.args for bar in pickle.loads(pickle.dumps(bars))]
        assert ways == [bar.make.args for bar in bars]
    level = {bar.name: (bar.level, bar.dtype) for bar in pytorch_rows.bars(GPU)}
    assert level["PyTorch FP32"] == ("nchw", "float32")
    assert level["PyTorch AMP, channels_last"] == ("nhwc", "float16")
    assert level["PyTorch AMP bfloat16, channels_last, compiled, graph"] == ("nhwc-fused", "bfloat16")


def test_what_is_a_graph_is_fused():
    """The other update reads a flag on the host under a loss scale; "reduce-overhead" has graphs of its own."""
    graphs = [way for way in pytorch_rows._ON_GPU.values() if way.graph]
    assert len(graphs) == 4
    assert all(way.fused and way.channels_last and way.compile != "reduce-overhead" for way in graphs)


# On a GPU: who is called in which order


class _Device:
    """Stands for torch.cuda, and writes down what it is asked for; a capture runs what it captures."""

    def __init__(self):
        self.calls = []

    def _note(self, *call):
        self.calls.append(call if len(call) > 1 else call[0])

    def Stream(self):
        return _Stream(self, "side")

    def current_stream(self):
        return _Stream(self, "default")

    @contextlib.contextmanager
    def stream(self, stream):
        self._note("enter", stream.name)
        yield
        self._note("leave", stream.name)

    def CUDAGraph(self):
        return _Graph(self)

    @contextlib.contextmanager
    def graph(self, graph, stream):
        self._note("capture", stream.name)
        yield
        self._note("captured")

    def synchronize(self):
        self._note("synchronize")

    def empty_cache(self):
        self._note("empty")

    def reset_peak_memory_stats(self):
        self._note("reset peak")

    def max_memory_reserved(self):
        return 7


@dataclasses.dataclass
class _Stream:
    device: _Device
    name: str

    def wait_stream(self, other):
        self.device._note(self.name, "waits for", other.name)


@dataclasses.dataclass
class _Graph:
    device: _Device

    def replay(self):
        self.device._note("replay")

    def reset(self):
        self.device._note("drop graph")


def _small(torch, kind, way):
    """Returns a step of a class on a network of three layers, on the CPU."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Flatten(), torch.nn.Linear(8 * 6 * 6, 10)
    )
    return kind(way, network, torch.randn(4, 3, 8, 8), torch.arange(4))


@pytest.fixture
def device(torch, torch_step, monkeypatch):
    """A step's torch.cuda, and among its calls the eager steps."""
    device = _Device()
    for name in [name for name in dir(device) if not name.startswith("_") and name != "calls"]:
        monkeypatch.setattr(torch.cuda, name, getattr(device, name))
    train = torch_step.CpuStep._train

    def noted(self):
        device._note("step")
        train(self)

    monkeypatch.setattr(torch_step.CpuStep, "_train", noted)
    return device


def test_a_block_of_an_eager_row(torch, torch_step, device):
    step = _small(torch, torch_step.GpuStep, pytorch_rows.PyTorchSettings("float16"))
    step.warm_up()
    assert device.calls == ["step"] * 5
    step()
    assert step.peak() == 7
    step.release()
    assert device.calls[5:] == ["step", "synchronize", "empty", "reset peak"]
    assert step.loss is None
    step.warm_up()
    assert device.calls[9:] == ["step"] * 5


def test_blocks_of_a_graph(torch, torch_step, device):
    """It is captured on the stream of the steps before it, replayed, dropped before its memory is freed; and again."""
    step = _small(torch, torch_step.GpuStep, pytorch_rows.PyTorchSettings("float16", graph=True))
    block = [
        *[("side", "waits for", "default"), ("enter", "side"), *["step"] * 5, ("leave", "side")],
        *[("default", "waits for", "side"), ("capture", "side"), "step", "captured", "replay"],
        *["replay", "replay", "synchronize", "drop graph", "empty", "reset peak"],
    ]
    for _ in range(2):
        device.calls.clear()
        step.warm_up()
        step()
        step()
        step.release()
        assert device.calls == block


def test_graphs_of_the_compiler_are_dropped_with_its_code(torch, torch_step, device, monkeypatch):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda model, **options: compiled.append(options) or model)
    monkeypatch.setattr(torch.compiler, "reset", lambda: device._note("forget"))
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: device._note("begin"))
    step = _small(torch, torch_step.GpuStep, pytorch_rows.PyTorchSettings("float16", compile="reduce-overhead"))
    step()
    step.release()
    assert device.calls == ["begin", "step", "synchronize", "forget", "empty", "reset peak"]
    assert compiled == [{"mode": "reduce-overhead", "fullgraph": True, "dynamic": False}] * 2

    device.calls.clear()
    step = _small(torch, torch_step.GpuStep, pytorch_rows.PyTorchSettings("float16", compile="default"))
    step.release()  # compiled code holds no memory of a step
    assert device.calls == ["synchronize", "empty", "reset peak"]
    assert len(compiled) == 3


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
            block = own.call(row_worker.block, 3)
            assert block.seconds > 0
            assert block.peak > 100e6  # bytes: weights, gradients and momenta alone are more


@pytest.mark.gpu
def test_replays_are_the_eager_steps(torch, torch_step):
    """With a learning rate at which float16's rounding does not grow from step to step."""
    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} has no GPU")
    losses = {}
    for graph in (False, True):
        step = torch_step.make(pytorch_rows.PyTorchSettings("float16", graph=graph), "resnet18", GPU, 8, 64)
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

"""A stand-in for the module ``cudnn`` of NVIDIA's frontend that computes its graphs with NumPy, on the host.

Only what mixprec uses, with the names and the order of calls of frontend 1.28. Formulas are those of cuDNN's
documentation (docs.nvidia.com/cudnn/operations). Everything is computed in float64; then each tensor, also one between
two nodes, is rounded to its declared dtype. Boolean tensors are packed, eight elements a byte, low bit first; of cuDNN
that is a guess.

What cuDNN 9.28 has no engine for is refused in the same call as there, see :mod:`fake_cudnn_limits`. There are three
plans to each graph, see ``PLANS``; they all compute the same.

Buffers are arrays of NumPy, or addresses, as ``graph.execute`` gets them from a backend: ``{uid: array or int}``.
"""

import collections
import ctypes
import enum
import math

import ml_dtypes
import numpy as np
from fake_cudnn_limits import cudnnGraphNotSupportedError, needs_tensor_cores, refuse
from fake_cudnn_nodes import NODES

__version__ = "1.28.0"
__all__ = ["cudnnGraphNotSupportedError"]

data_type = enum.Enum("data_type", "NOT_SET HALF BFLOAT16 FLOAT BOOLEAN")
heur_mode = enum.Enum("heur_mode", "A B FALLBACK")
build_plan_policy = enum.Enum("build_plan_policy", "HEURISTICS_CHOICE ALL")
scalar_type = enum.Enum("scalar_type", "COMPILE_TIME_CONST RUNTIME_PARAM")
numerical_note = enum.Enum(
    "numerical_note", "TENSOR_CORE DOWN_CONVERT_INPUTS REDUCED_PRECISION_REDUCTION FFT NONDETERMINISTIC WINOGRAD"
)
behavior_note = enum.Enum("behavior_note", "RUNTIME_COMPILATION SUPPORTS_CUDA_GRAPH_NATIVE_API")

_DTYPES = {
    data_type.HALF: np.dtype(np.float16),
    data_type.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    data_type.FLOAT: np.dtype(np.float32),
    data_type.BOOLEAN: np.dtype(np.bool_),
}

Plan = collections.namedtuple("Plan", "engine workspace numerical behavior")
PLANS = (
    Plan(0, 1 << 20, {numerical_note.TENSOR_CORE, numerical_note.NONDETERMINISTIC}, set()),
    Plan(1, 1 << 12, {numerical_note.TENSOR_CORE}, {behavior_note.RUNTIME_COMPILATION}),
    Plan(2, 0, set(), {behavior_note.SUPPORTS_CUDA_GRAPH_NATIVE_API}),
)

executed = []  # (operations of the graph, number of the plan) of each execution; tests may clear it


def backend_version():
    return 92800


def backend_version_string():
    return "9.28.0"


class Handle:
    """What :func:`create_handle` returns."""

    def __init__(self):
        self.stream, self.alive = 0, True


def create_handle():
    return Handle()


def destroy_handle(handle):
    handle.alive = False


def set_stream(handle, stream):
    handle.stream = stream


def get_stream(handle):
    return handle.stream


def execute(graph, pack):
    """Builds a described graph if that has not been done, and executes it.

    Args:
        graph: :class:`pygraph`.
        pack: NumPy arrays by uid: those of inputs are read, those of outputs written. They are dense, in the order of
            memory that the strides of the tensors say, whatever their own shapes.
    """
    if graph.plan is None:
        graph.build([heur_mode.A])
    graph.execute(pack, 1)


class Tensor:
    """A tensor of a graph; the setters return it."""

    def __init__(self, name="", dim=None, stride=None, data_type=None, uid=None, value=None, is_virtual=False):
        self.name, self.dim, self.stride, self.data_type, self.uid = name, dim, stride, data_type, uid
        self.value, self.is_virtual = value, is_virtual

    def set_output(self, value):
        self.is_virtual = not value
        return self

    def set_data_type(self, value):
        self.data_type = value
        return self

    def set_uid(self, value):
        self.uid = value
        return self

    def set_dim(self, value):
        self.dim = list(value)
        return self

    def set_stride(self, value):
        self.stride = list(value)
        return self

    def set_name(self, value):
        self.name = value
        return self

    def get_uid(self):
        return self.uid

    def get_dim(self):
        return list(self.dim)

    def get_stride(self):
        return list(self.stride)

    @property
    def dtype(self):
        return _DTYPES[self.data_type]

    def rounded(self, value):
        """Returns a float64 array rounded to the tensor's dtype, as float64."""
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(value).astype(self.dtype).astype(np.float64)


class Node:
    """One operation: what it takes by name, its attributes, and what it gives."""

    def __init__(self, kind, inputs, attributes):
        self.kind, self.inputs, self.attributes = kind, inputs, attributes
        self.outputs = tuple(Tensor(f"{kind}::{name}", is_virtual=True) for name in NODES[kind].outputs)


class pygraph:
    """Records nodes, and computes them after the same sequence of calls that cuDNN wants."""

    def __init__(
        self,
        name="",
        io_data_type=None,
        intermediate_data_type=None,
        compute_data_type=None,
        handle=None,
        sm_count=None,
        sm_version=None,
        kernel_cache=None,
        device_property=None,
    ):
        self.io_data_type, self.intermediate_data_type = io_data_type, intermediate_data_type
        assert compute_data_type is data_type.FLOAT, "everything that mixprec asks for accumulates in float32"
        self.sm_version = sm_version
        self.nodes, self.inputs = [], []
        self.stage = 0  # how many of the five steps to a plan have been done
        self.plans, self.barred, self.built, self.plan = (), set(), set(), None

    # Description

    def tensor(self, dim, stride, data_type=None, is_virtual=False, is_pass_by_value=False, name="", uid=None):
        assert not is_virtual
        assert not is_pass_by_value
        tensor = Tensor(name, list(dim), list(stride), data_type or self.io_data_type, uid)
        self.inputs.append(tensor)
        return tensor

    def tensor_scalar(self, value, scalar_type, name=""):
        return Tensor(name, [1, 1, 1, 1], [1, 1, 1, 1], data_type.FLOAT, value=value)

    def __getattr__(self, kind):
        """Methods for the kinds of nodes."""
        if kind not in NODES:
            raise AttributeError(f"the stand-in for cuDNN's pygraph has no {kind}")
        known = NODES[kind]

        def add(name="", compute_data_type=None, **arguments):
            assert self.stage == 0, "a node was added after validate()"
            inputs = {key: arguments.pop(key) for key in known.inputs}
            unknown = set(arguments) - set(known.attributes)
            assert not unknown, f"{kind}() got {sorted(unknown)}"
            node = Node(kind, inputs, arguments)
            self.nodes.append(node)
            return node.outputs[0] if len(node.outputs) == 1 else list(node.outputs)

        return add

    # From a description to a plan

    def _step(self, number, name):
        assert self.stage == number - 1, f"{name}() after {self.stage} of the five steps to a plan"
        self.stage = number

    def validate(self):
        self._step(1, "validate")
        for node in self.nodes:
            dims = {key: tensor.dim for key, tensor in node.inputs.items()}
            shapes = NODES[node.kind].shapes(dims, node.attributes, [tensor.dim for tensor in node.outputs])
            for tensor, dim in zip(node.outputs, shapes, strict=True):
                if tensor.dim is not None and tensor.dim != list(dim):
                    raise RuntimeError(f"{tensor.name}: dimensions {tensor.dim} were set, {list(dim)} expected")
                tensor.dim = list(dim)
                default = self.intermediate_data_type if tensor.is_virtual else self.io_data_type
                tensor.data_type = tensor.data_type or default
                if not tensor.is_virtual and tensor.stride is None:
                    raise RuntimeError(f"{tensor.name}: an output without strides; the stand-in infers none")
        uids = [tensor.uid for tensor in self.operands]
        if None in uids or len(set(uids)) < len(uids):
            raise RuntimeError(f"uids of inputs and outputs have to be set and different, found {uids}")

    @property
    def operands(self):
        """The tensors of the variant pack."""
        return self.inputs + [tensor for node in self.nodes for tensor in node.outputs if not tensor.is_virtual]

    def build_operation_graph(self):
        self._step(2, "build_operation_graph")

    def create_execution_plans(self, heuristics):
        self._step(3, "create_execution_plans")
        assert all(isinstance(mode, heur_mode) for mode in heuristics)
        refuse(self)
        self.plans = PLANS[:2] if needs_tensor_cores(self) else PLANS

    def create_execution_plan(self, engine_id, knobs):
        assert self.stage >= 2, "create_execution_plan() before build_operation_graph()"
        self.plans = (*self.plans, PLANS[engine_id])

    def deselect_workspace_greater_than(self, size):
        self._bar(lambda plan: plan.workspace > size)

    def deselect_numeric_notes(self, notes):
        self._bar(lambda plan: plan.numerical & set(notes))

    def deselect_behavior_notes(self, notes):
        self._bar(lambda plan: plan.behavior & set(notes))

    def _bar(self, condition):
        assert self.plans, "filters before create_execution_plans()"
        self.barred |= {number for number, plan in enumerate(self.plans) if condition(plan)}

    def check_support(self):
        self._step(4, "check_support")
        if len(self.barred) == len(self.plans):
            raise cudnnGraphNotSupportedError("all plans are excluded")

    def build_plans(self, policy=build_plan_policy.HEURISTICS_CHOICE):
        self._step(5, "build_plans")
        allowed = [number for number in range(len(self.plans)) if number not in self.barred]
        self.built = set(allowed if policy is build_plan_policy.ALL else allowed[:1])
        self.plan = allowed[0]

    def build(self, heuristics):
        self.validate()
        self.build_operation_graph()
        self.create_execution_plans(heuristics)
        self.check_support()
        self.build_plans()

    def build_plan_at_index(self, index):
        assert self.plans
        if index in self.barred:
            raise ValueError(f"plan {index} is excluded")
        self.built.add(index)
        self.plan = index

    # About plans

    def get_execution_plan_count(self):
        return len(self.plans)

    def get_plan_name_at_index(self, index):
        return f"eng{self.plans[index].engine}_k0=0"

    def get_engine_and_knobs_at_index(self, index):
        return self.plans[index].engine, {}

    def get_behavior_notes_for_plan_at_index(self, index):
        return sorted(self.plans[index].behavior, key=lambda note: note.value)

    def get_workspace_size(self):
        return self.get_workspace_size_plan_at_index(self.plan)

    def get_workspace_size_plan_at_index(self, index):
        if index not in self.built:
            raise RuntimeError(f"plan {index} was not built")
        return self.plans[index].workspace

    # Execution

    def execute(self, pack, workspace=None, handle=None):
        self.execute_plan_at_index(pack, workspace, self.plan, handle)

    def execute_plan_at_index(self, pack, workspace, index, handle=None):
        assert index in self.built, f"plan {index} was not built"
        assert workspace or not self.plans[index].workspace, "no workspace was given"
        assert handle is None or handle.alive
        missing = [tensor.name for tensor in self.operands if tensor.uid not in pack]
        assert not missing, f"no buffers for {missing}"
        values = {id(tensor): _read(tensor, pack[tensor.uid]) for tensor in self.inputs}
        for node in self.nodes:
            inputs = {
                key: values[id(tensor)] if tensor.value is None else tensor.rounded(tensor.value)
                for key, tensor in node.inputs.items()
            }
            with np.errstate(all="ignore"):
                results = NODES[node.kind].compute(inputs, node.attributes, [tensor.dim for tensor in node.outputs])
            for tensor, result in zip(node.outputs, results, strict=True):
                values[id(tensor)] = tensor.rounded(np.broadcast_to(result, tensor.dim))
        for tensor in self.operands[len(self.inputs) :]:  # at the end: outputs may lie where inputs are
            _write(tensor, pack[tensor.uid], values[id(tensor)])
        executed.append((tuple(node.kind for node in self.nodes), index))


def _extent(tensor):
    """The number of elements from the first to the last in memory."""
    return 1 + sum((size - 1) * step for size, step in zip(tensor.dim, tensor.stride, strict=True))


def _memory(tensor, buffer):
    """Returns the bytes of a buffer as uint8."""
    extent = _extent(tensor)
    size = math.ceil(extent / 8) if tensor.dtype == np.bool_ else extent * tensor.dtype.itemsize
    if isinstance(buffer, int):
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(buffer))
    assert buffer.flags.c_contiguous, f"{tensor.name}: the array is not contiguous"
    if tensor.dtype != np.bool_:
        assert buffer.dtype == tensor.dtype, f"{tensor.name}: found {buffer.dtype}, expected {tensor.dtype}"
        assert buffer.nbytes == size, f"{tensor.name}: found {buffer.nbytes} bytes, expected {size}"
    assert buffer.nbytes >= size, f"{tensor.name}: found {buffer.nbytes} bytes, expected {size}"
    return buffer.reshape(-1).view(np.uint8)[:size]


def _in_logical_order(tensor, flat):
    strides = [step * flat.itemsize for step in tensor.stride]
    return np.lib.stride_tricks.as_strided(flat, tensor.dim, strides)


def _read(tensor, buffer):
    memory = _memory(tensor, buffer)
    if tensor.dtype == np.bool_:
        flat = np.unpackbits(memory, count=_extent(tensor), bitorder="little")
    else:
        flat = memory.view(tensor.dtype)
    return _in_logical_order(tensor, flat).astype(np.float64)


def _write(tensor, buffer, value):
    memory = _memory(tensor, buffer)
    if tensor.dtype == np.bool_:
        flat = np.zeros(_extent(tensor), np.bool_)
        _in_logical_order(tensor, flat)[...] = value != 0
        memory[...] = np.packbits(flat, bitorder="little")
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            _in_logical_order(tensor, memory.view(tensor.dtype))[...] = value

"""A stand-in for the module ``cudnn`` of NVIDIA's frontend that computes its graphs with NumPy, on the host.

Only what mixprec uses, with the names and the order of calls of frontend 1.28. Formulas are those of cuDNN's
documentation (docs.nvidia.com/cudnn/operations). Everything is computed in float64; then each tensor, also one between
two nodes, is rounded to its declared dtype. Boolean tensors are packed, eight elements a byte, low bit first; of cuDNN
that is a guess.

What cuDNN 9.28 has no engine for is refused in the same call as there, see ``fake_cudnn_limits``. There are three
plans to each graph, see ``PLANS``; they all compute the same.

Buffers are addresses, as ``execute_plan_at_index`` gets them from a backend: ``{uid: int}``.
"""

import collections
import enum

import numpy as np

from tests.stand_ins.fake_cudnn_limits import cudnnGraphNotSupportedError, refuse
from tests.stand_ins.fake_cudnn_nodes import NODES
from tests.stand_ins.fake_cudnn_tensors import Tensor, data_type, read, write

__version__ = "1.28.0"

heur_mode = enum.Enum("heur_mode", "A B FALLBACK")
scalar_type = enum.Enum("scalar_type", "COMPILE_TIME_CONST RUNTIME_PARAM")
numerical_note = enum.Enum(
    "numerical_note", "TENSOR_CORE DOWN_CONVERT_INPUTS REDUCED_PRECISION_REDUCTION FFT NONDETERMINISTIC WINOGRAD"
)
behavior_note = enum.Enum("behavior_note", "RUNTIME_COMPILATION SUPPORTS_CUDA_GRAPH_NATIVE_API")

Plan = collections.namedtuple("Plan", "engine workspace numerical behavior")
PLANS = (
    Plan(0, 1 << 20, {numerical_note.TENSOR_CORE, numerical_note.NONDETERMINISTIC}, set()),
    Plan(1, 1 << 12, {numerical_note.TENSOR_CORE}, {behavior_note.RUNTIME_COMPILATION}),
    Plan(2, 0, set(), {behavior_note.SUPPORTS_CUDA_GRAPH_NATIVE_API}),
)

executed = []  # (operations of the graph, number of the engine) of each execution; tests may clear it
serialized = []  # (graph, number of the plan) of each that was serialized


def backend_version():
    return 92800


def backend_version_string():
    return "9.28.0"


class Handle:
    """What :func:`create_handle` returns."""

    def __init__(self):
        self.stream = 0


def create_handle():
    return Handle()


def set_stream(handle, stream):
    handle.stream = stream


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
        self.compute_data_type = compute_data_type
        self.sm_version = sm_version
        self.nodes, self.inputs = [], []
        self.stage = 0  # how many of the four steps to a list of plans have been done
        self.plans, self.barred, self.built, self.plan = (), set(), set(), None
        self.deserialized = False

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
        assert self.stage == number - 1, f"{name}() after {self.stage} of the four steps to a list of plans"
        self.stage = number

    def validate(self):
        self._step(1, "validate")
        assert self.compute_data_type is data_type.FLOAT, "everything that mixprec asks for accumulates in float32"
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
        self.plans = PLANS

    def deselect_numeric_notes(self, notes):
        assert self.plans, "a filter before create_execution_plans()"
        self.barred |= {number for number, plan in enumerate(self.plans) if plan.numerical & set(notes)}

    def check_support(self):
        self._step(4, "check_support")
        if len(self.barred) == len(self.plans):
            raise cudnnGraphNotSupportedError("all plans are excluded")

    def build_plan_at_index(self, index):
        assert self.stage == 4, "build_plan_at_index() before check_support()"
        if index in self.barred:
            raise ValueError(f"plan {index} is excluded")
        self.built.add(index)
        self.plan = index

    def serialize(self):
        """The plan that was built last, as a list of bytes; the stand-in keeps the rest to itself."""
        serialized.append((self, self.plan))
        return list(b"plan %d" % (len(serialized) - 1))

    def deserialize(self, data):
        assert not self.nodes, "deserialize() of a graph that has nodes"
        assert all(type(byte) is int for byte in data), "frontend 1.28 takes a list of ints, and no bytes"
        other, index = serialized[int(bytes(data).split()[1])]
        self.io_data_type, self.nodes, self.inputs, self.stage = other.io_data_type, other.nodes, other.inputs, 4
        self.plans, self.built, self.plan = other.plans[index : index + 1], {0}, 0
        self.deserialized = True

    # About plans

    def get_execution_plan_count(self):
        return len(self.plans)

    def get_plan_name_at_index(self, index):
        assert not self.deserialized, "frontend 1.28 crashes here"
        return f"eng{self.plans[index].engine}_k0=0"

    def get_behavior_notes_for_plan_at_index(self, index):
        return sorted(self.plans[index].behavior, key=str)

    def get_workspace_size_plan_at_index(self, index):
        if index not in self.built:
            raise RuntimeError(f"plan {index} was not built")
        return self.plans[index].workspace

    # Execution

    def execute_plan_at_index(self, pack, workspace, index, handle=None):
        assert index in self.built, f"plan {index} was not built"
        assert workspace or not self.plans[index].workspace, "no workspace was given"
        missing = [tensor.name for tensor in self.operands if tensor.uid not in pack]
        assert not missing, f"no buffers for {missing}"
        values = {id(tensor): read(tensor, pack[tensor.uid]) for tensor in self.inputs}
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
            write(tensor, pack[tensor.uid], values[id(tensor)])
        executed.append((tuple(node.kind for node in self.nodes), self.plans[index].engine))

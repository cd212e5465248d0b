"""The engines of cuDNN for an operation."""

import re

from mixprec.backends.cudnn.errors import NoEngine, one_line
from mixprec.backends.cudnn.operation_graphs import data_type, describe
from mixprec.base.announcements import announce

# Parts of error texts that tell nothing about engines: cuDNN could not load a library or get memory, or the GPU has
# failed before.
_FAULT = re.compile("CUDNN_STATUS_(?!NOT_SUPPORTED|BAD_PARAM)|CUDA_ERROR|cudaError")
# Products of matrices in bfloat16 whose rows are not a multiple of 16 bytes. With cuDNN 9.19 on an H100 eng39, with a
# bias, was off by 3 ulp for 17 channels, and eng63, of gradients, by 160 ulp for 10. eng58 is eng39 without a bias.
_WRONG_IF_NARROW = ("eng39", "eng58", "eng63")
_MODES = {"off": ("A", "FALLBACK"), "heuristic": ("B", "FALLBACK"), "measure": ("A", "B", "FALLBACK")}


class Engines:
    """An operation as a graph of cuDNN, and the engines for it in the order of cuDNN's heuristics.

    An engine is identified by cuDNN's name with the values of its knobs, ``eng62_k2=5_k13=1``; this name is also stored
    on disk. The frontend's pairs of engine and knobs are not sufficient: knobs unknown to it are ``NOT_SET``.

    Args:
        frontend: the module of cuDNN's frontend.
        operation: :class:`~mixprec.backends.cudnn.operation.Operation`.
        settings: :class:`~mixprec.backends.cudnn.settings.Settings`.
        stored: :class:`~mixprec.backends.stored.Stored` of engines that were compiled; ``None`` to compile each.
        never: names of engines that must not be used.
        **where: arguments of ``pygraph`` for the GPU: ``sm_version``, and ``handle`` or ``device_property``.

    Attributes:
        graph: the frontend's graph.

    Raises:
        NoEngine: cuDNN has none for any workspace.
        RuntimeError: cuDNN could not look for engines.
    """

    def __init__(self, frontend, operation, settings, *, stored=None, never=(), **where):
        if settings.deterministic and operation.kind == "conv_fprop" and "sum" in operation.has:
            # Seen with 9.19 on an H100, though the engine has no note of it.
            raise NoEngine("its sums of channels differ from run to run, and cudnn.deterministic is set")
        self._limit = settings.workspace
        self._operation = operation
        self._frontend, self._where = frontend, where
        self._stored, self._never = stored, never
        self._wrong = _WRONG_IF_NARROW if _is_narrow(operation) else ()
        self._places = {}  # (graph, index) of the engines that were built
        self._compiled = {}  # serialized graphs of compiled engines, until they are stored or dropped
        self._unsupported = frontend.cudnnGraphNotSupportedError
        self._failures = (frontend.cudnnGraphNotSupportedError, RuntimeError, ValueError)
        self._excluded = _excluded_notes(operation, settings)
        self._sizes = {}  # bytes of workspace of the engines that were built
        self._too_large = {}  # bytes of workspace of engines that need more than the limit
        self._reason = "none is offered"
        self._fault = None  # an error that tells nothing about an engine
        self.graph = frontend.pygraph(
            io_data_type=data_type(frontend, operation.inputs[0].dtype),
            intermediate_data_type=frontend.data_type.FLOAT,
            compute_data_type=frontend.data_type.FLOAT,
            **where,
        )
        try:
            describe(frontend, self.graph, operation)
            self.graph.validate()
            self.graph.build_operation_graph()
            modes = [getattr(frontend.heur_mode, mode) for mode in _MODES[settings.autotune]]
            self.graph.create_execution_plans(modes)
            # Only now: filters apply to engines that have been listed. All sums are float32, whatever is stored.
            unwanted = ("REDUCED_PRECISION_REDUCTION", *self._excluded)
            self.graph.deselect_numeric_notes([getattr(frontend.numerical_note, note) for note in unwanted])
            # cuDNN's own list of engines is filtered now. Frontend 1.28 would go through its copy of the filters for
            # every engine in each run, 4 microseconds a filter; it is for engines in Python, which these graphs lack.
            getattr(self.graph, "_note_filters", []).clear()
            self.graph.check_support()
        except self._failures as error:
            self._note(error)
            raise self.none() from error
        self._indices = {}
        for index in range(self.graph.get_execution_plan_count()):
            self._indices.setdefault(self.graph.get_plan_name_at_index(index), index)

    @property
    def names(self):
        """The names of all listed engines, in the order of cuDNN's heuristics."""
        return [name for name in self._indices if not self._is_out(name)]

    def _is_out(self, name):
        """Whether an engine has failed before, or is known to give wrong results for such an operation."""
        return name in self._never or name.split("_")[0] in self._wrong

    def place(self, name):
        """Returns the graph of a built engine, and its number in the graph."""
        return self._places[name]

    def is_compiled(self, name):
        """Whether an engine is compiled when it is built, which takes a second rather than a millisecond."""
        notes = self.graph.get_behavior_notes_for_plan_at_index(self._indices[name])
        return self._frontend.behavior_note.RUNTIME_COMPILATION in notes

    def keep(self, name):
        """Stores an engine on disk if it was compiled, for the next process; drops data of the others."""
        content = self._compiled.get(name)
        if content is not None and self._stored is not None:
            self._stored.put(self._key(name), content)
        self._compiled.clear()

    def size(self, name):
        """Returns the workspace of a built engine in bytes."""
        return self._sizes[name]

    def build(self, name, load=False):
        """Builds an engine, once, and returns whether it can be used: cuDNN offers it, it builds, and it fits.

        Args:
            name: name of the engine.
            load: whether to use an engine that another process has compiled.
        """
        if name in self._sizes:
            return True
        if name not in self._indices or name in self._too_large or self._is_out(name):
            return False
        graph, index = self.graph, self._indices[name]
        try:
            loaded = self._load(name) if load else None
            if loaded is not None:
                graph, index = loaded, 0
            else:
                graph.build_plan_at_index(index)
                if self._stored is not None and self.is_compiled(name):
                    self._serialize(name)  # now: the serialized graph is of the last built plan
            size = graph.get_workspace_size_plan_at_index(index)
        except self._failures as error:
            self._note(error)
            return False
        if size > self._limit:
            self._too_large[name] = size
            return False
        self._sizes[name], self._places[name] = size, (graph, index)
        return True

    def _serialize(self, name):
        try:
            self._compiled[name] = bytes(self.graph.serialize())
        except self._failures as error:  # it can compute nevertheless
            announce("%s: %s cannot be kept on disk: %s", self._operation, name, one_line(error))

    def _load(self, name):
        """Returns a graph with an engine that another process has compiled, or ``None``."""
        content = None if self._stored is None else self._stored.get(self._key(name))
        if content is None:
            return None
        graph = self._frontend.pygraph(**self._where)
        try:
            graph.deserialize(list(content))
        except self._failures as error:
            self._say_unloadable(name, error)
            return None
        return graph

    def compile_anew(self, name, error):
        """Recompiles a cached engine that failed to run.

        Returns True if the engine had come from the cache and was replaced.
        """
        if name not in self._places or self._places[name][0] is self.graph:
            return False
        self._say_unloadable(name, error)
        del self._sizes[name], self._places[name]
        return self.build(name)

    def _say_unloadable(self, name, error):
        announce("%s: %s from disk fails, it is compiled again: %s", self._operation, name, one_line(error))

    def _key(self, name):
        return f"{self._operation} {name}"

    def usable(self, load=False):
        """Yields the names of engines that can be used, in the order of cuDNN's heuristics, building one at a time."""
        return (name for name in self.names if self.build(name, load))

    def none(self):
        """Returns the error for no usable engine: NoEngine, or RuntimeError if that may be temporary."""
        if self._fault is None:
            return NoEngine(self.why_none())
        return RuntimeError(f"cuDNN cannot build {self._operation}: {self._fault}")

    def why_none(self):
        """Returns the reason why no engine can be used, or why the last one failed."""
        if self._too_large:
            enough = -(-min(self._too_large.values()) // 2**20)
            return (
                f"{len(self._too_large)} need more workspace than the limit of {self._limit / 2**20:g} MiB; raise "
                f"cudnn.workspace_mib to {enough} or more"
            )
        without = f", without those that have the notes {' and '.join(self._excluded)}" if self._excluded else ""
        if self._never:
            without += f", without {', '.join(self._never)}, which have failed before"
        return self._reason + without

    def _note(self, error):
        self._reason = one_line(error)
        if not isinstance(error, self._unsupported) and _FAULT.search(str(error)):
            self._fault = self._reason


def _is_narrow(operation):
    """Whether a convolution in bfloat16 has rows of an image or a filter that are not a multiple of 16 bytes."""
    return operation.kind.startswith("conv") and any(
        tensor.dtype == "bfloat16" and len(tensor.shape) == 4 and tensor.shape[3] % 8 for tensor in operation.tensors
    )


def _excluded_notes(operation, settings):
    """Returns the names of numerical notes whose engines are excluded."""
    notes = []
    if settings.deterministic:
        notes.append("NONDETERMINISTIC")
    if operation.inputs[0].dtype == "float32" and not (settings.tf32 and settings.tensor_cores):
        # Tensor cores know no float32: such an engine rounds its inputs to TF32 or less.
        notes += ["TENSOR_CORE", "DOWN_CONVERT_INPUTS"]
    elif not settings.tensor_cores:
        notes.append("TENSOR_CORE")
    return notes

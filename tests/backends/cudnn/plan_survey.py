"""Writes a Markdown table of what cuDNN has for each variant on each GPU, for docs. No GPU is needed.

    PYTHONPATH=. python tests/backends/cudnn/plan_survey.py > table.md

A cell is the first engine of heuristic A that builds, how many are listed, and its workspace if it needs 1 MiB or more;
``rtc``: it is compiled at run time, ``graph``: cuDNN can put it into a CUDA graph by itself. In float32 nothing is
rounded to TF32.
"""

import pathlib
import tempfile

from mixprec.backends.cudnn.engines import Engines
from mixprec.backends.cudnn.errors import NoEngine
from mixprec.backends.cudnn.settings import Settings
from tests.backends.cudnn.plan_variants import variants
from tests.stand_ins import deviceless_cudnn

_NOTES = {"RUNTIME_COMPILATION": "rtc", "SUPPORTS_CUDA_GRAPH_NATIVE_API": "graph"}


def cell(cudnn, operation, gpu):
    try:
        engines = Engines(cudnn, operation, Settings(autotune="off"), **deviceless_cudnn.arguments_for(cudnn, gpu))
    except NoEngine:
        return "none"
    name = next(engines.usable(), None)
    if name is None:
        return "none"
    graph, index = engines.place(name)
    notes = [_NOTES.get(note.name, note.name) for note in graph.get_behavior_notes_for_plan_at_index(index)]
    size = engines.size(name) / 2**20
    workspace = [f"{size:.0f} MiB"] if size >= 1 else []
    return ", ".join([name.split("_")[0], f"{graph.get_execution_plan_count()} listed", *workspace, *notes])


def main():
    with tempfile.TemporaryDirectory() as folder:
        cudnn = deviceless_cudnn.load(deviceless_cudnn.compile_driver(pathlib.Path(folder)))
    print(f"cuDNN {cudnn.backend_version_string()}, frontend {cudnn.__version__}\n")
    print(
        f"| operation | dtype | {' | '.join(deviceless_cudnn.GPUS)} |\n|---|---|{'---|' * len(deviceless_cudnn.GPUS)}"
    )
    for dtype in ("float16", "bfloat16", "float32"):
        for name, operation in variants(dtype).items():
            cells = [cell(cudnn, operation, gpu) for gpu in deviceless_cudnn.GPUS]
            print(f"| {name} | {dtype} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

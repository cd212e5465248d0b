"""Runs the own CUDA kernels of mixprec under compute-sanitizer: bounds, races, uninitialized memory, barriers.

python scripts/sanitize.py [--tool memcheck|racecheck|initcheck|synccheck ...]

The tests of primitives on a GPU whose names have ``own_kernels``, and those in NCHW, run once for each tool, without
CuPy's memory pool, so that every array is an allocation of its own and its end is seen. Those of bfloat16 are left out:
the kernels differ from those of float16 in the conversion only, and most of the time goes into compiling. cuDNN is not
needed.

compute-sanitizer is looked for in PATH, in CUDA_HOME, and among NVIDIA's wheels. One line for each tool says what came
out, after all that compute-sanitizer and pytest have printed if something is wrong.

Exit status: 0 if all is clean, 1 if not, 2 if it could not be tried.
"""

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from mixprec.app.commands import command_process

if __name__ == "__main__":
    command_process.begin()  # before the seconds that the imports below take

from mixprec.app.commands.command_line import Parser, first_line
from mixprec.app.parts import gpus

ROOT = pathlib.Path(__file__).resolve().parents[1]
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
_NCHW = [f"nchw/test_nchw_{name}.py" for name in ("activation", "batch_norm", "bias", "pooling", "softmax")]
FILES = [f"tests/backends/{name}" for name in ("cuda/test_gpu_primitives.py", "cuda/test_curvature.py", *_NCHW)]
NAMES = "(own_kernels or nchw) and not large and not cudnn and not bfloat16"
TESTS = ("-m", "gpu", "-k", NAMES, *FILES)
_CHILD = "import cupy, pytest, sys; cupy.cuda.set_allocator(None); sys.exit(pytest.main(sys.argv[1:]))"
_INSTALL = "pip install nvidia-cuda-sanitizer-api  (CUDA 12: nvidia-cuda-sanitizer-api-cu12), or NVIDIA's CUDA toolkit"
_ERRORS = 86  # exit status for what a tool has found; pytest's own are below 10


def find():
    """Returns the path of compute-sanitizer, or ``None``."""
    name = "compute-sanitizer"
    folders = [pathlib.Path(os.environ[key], "bin") for key in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(key)]
    wheels = importlib.util.find_spec("nvidia")
    for folder in wheels.submodule_search_locations if wheels else ():
        folders += sorted(pathlib.Path(folder).glob("*/bin"))
    return next(filter(None, (shutil.which(name, path=place) for place in (None, *map(str, folders)))), None)


def run(sanitizer, tool):
    """Runs the tests under a tool.

    Returns:
        ``(verdict, output)``: ``"clean, ..."``, or what is wrong.
    """
    command = [sanitizer, "--tool", tool, "--error-exitcode", str(_ERRORS), "--report-api-errors", "no"]
    command += [sys.executable, "-c", _CHILD, "-q", *TESTS]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return _verdict(done.returncode, done.stdout), done.stdout


def _verdict(status, output):
    found = [int(number) for number in re.findall(r"^=+ (?:ERROR|RACECHECK) SUMMARY: (\d+) ", output, re.MULTILINE)]
    passed = re.search(r"(\d+) passed", output)
    if sum(found) or status == _ERRORS:
        return f"{sum(found)} errors or hazards"
    if status:
        return f"the tests failed, exit status {status}"
    if not found or passed is None:
        return "nothing was checked: no test ran, or compute-sanitizer has not followed it"
    return f"clean, {passed[1]} tests"


def main(arguments=None):
    """Prints a line for each tool and returns the exit status."""
    parser = Parser(description=first_line(__doc__))
    parser.add_argument("--tool", choices=TOOLS, action="append", help="may be repeated; by default all in turn")
    tools = parser.parse_args(arguments).tool or TOOLS
    sanitizer = find()
    if sanitizer is None:
        print(f"sanitize: compute-sanitizer is not installed: {_INSTALL}", file=sys.stderr)
        return 2
    try:
        gpus.resolve_device("gpu")
    except ValueError as error:
        print(f"sanitize: {error}", file=sys.stderr)
        return 2
    clean = True
    for tool in tools:
        verdict, output = run(sanitizer, tool)
        if not verdict.startswith("clean"):
            clean = False
            print(output)
        print(f"{tool}: {verdict}", flush=True)
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(command_process.run(main))

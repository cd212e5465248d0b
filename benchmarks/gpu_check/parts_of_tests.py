"""The tests that need a GPU in parts of 60 to 90 seconds, those first that say most; each part is one run of pytest."""

import re

# A line for each test, so that the log of a part that was killed says which have passed. The packages of a lent machine
# are not pinned: their warnings are no errors. A part ends early if everything fails.
OPTIONS = (
    *("-m", "gpu", "-v", "-W", "default", "--maxfail=20", "--continue-on-collection-errors"),
    *(word for name in ("xdist", "benchmark", "cov", "cacheprovider") for word in ("-p", f"no:{name}")),
)
_PRIMITIVES = "tests/backends/cuda/test_gpu_primitives.py"
_FIRST = "mask or variance or workspace or own_kernels and float16"
_TRAINING = [f"tests/training/test_{name}.py" for name in ("captured", "accumulation", "averaging", "evaluation")]
_NAMED = (  # (name, words, seconds); files, as importing all of a folder takes longer than its tests for a GPU
    ("unknown", (_PRIMITIVES, "-k", _FIRST), 90.0),
    ("captures", ("tests/graph_capture/test_gpu.py", *_TRAINING), 90.0),
    ("ranks", ("tests/distributed/test_gpu.py",), 60.0),
    (
        "update",
        (
            "tests/optimizer/batch/test_gpu.py",
            "tests/optimizer/batch/test_memory.py",
            "tests/optimizer/test_bfloat16.py",
        ),
        60.0,
    ),
    ("links", ("tests/links/test_gpu.py", "tests/rewrite/test_gpu.py", "tests/functions/test_dropout.py"), 60.0),
    ("float16", (_PRIMITIVES, "-k", f"not ({_FIRST}) and float16"), 90.0),
    ("float32", (_PRIMITIVES, "-k", f"not ({_FIRST}) and not float16"), 90.0),
    ("bridge", ("tests/bridge/test_gpu.py", "tests/bridge/test_curve.py"), 90.0),
)
_REST = {"backends": 90.0, "": 60.0}  # seconds of all other files, of a folder and of the others
_FOR_A_GPU = re.compile(r"mark\.gpu|both_sides|on_devices")


def shards(root):
    """Returns tuples of name, words of pytest, and seconds; each test that needs a GPU is in one of them.

    Args:
        root: the checkout, a path.
    """
    found = [(f"tests-{name}", words, seconds) for name, words, seconds in _NAMED]
    others = [name for name in _files(root) if not any(name in words for _, words, _ in _NAMED)]
    for folder, seconds in _REST.items():
        own = tuple(name for name in others if name.startswith(f"tests/{folder}"))
        others = [name for name in others if name not in own]
        if own:
            found.append((f"tests-{folder or 'rest'}", own, seconds))
    return found


def _files(root):
    """Files with a test that needs a GPU, by what they say."""
    paths = sorted((root / "tests").glob("*/**/test_*.py"))
    return [path.relative_to(root).as_posix() for path in paths if _FOR_A_GPU.search(path.read_text("utf-8"))]

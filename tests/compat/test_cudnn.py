"""Chainer sees a cuDNN where there is a GPU with cuDNN 9 and its frontend, only there, and no import starts CUDA."""

import glob
import re
import types
from pathlib import Path

import pytest

from mixprec.app.parts import environment, gpus
from mixprec.bridge import constants
from mixprec.compat import gpu_presence
from tests.cases import first
from tests.stand_ins.bridge_machine import FRONTEND, NO_FRONTEND, machine, python

SEEN = """
    import sys, chainer
    from chainer.backends import cuda
    placed = [name for name in ("cupy.cudnn", "cupy.cuda.cudnn") if name in sys.modules]
    print(cuda.available, cuda.cudnn_enabled, len(placed), chainer.should_use_cudnn(">=auto", 7000))
"""
REPORT = """
    from mixprec.app.parts import environment
    print(environment.report())
"""
OFF, ON = "True False 0 False", "True True 2 True"
NO_CUPY = "False False 0 False"


def test_with_a_gpu_and_cudnn_chainer_has_cudnn(tmp_path):
    code = """
        import sys, cupy, chainer
        from chainer.backends import cuda
        assert "mixprec.backends" not in sys.modules and "mixprec.bridge.functions" not in sys.modules
        assert cuda.cudnn_enabled and cuda._cudnn_version == 92800
        assert cuda.cudnn is cupy.cudnn is sys.modules["cupy.cudnn"]
        assert cuda.libcudnn is cuda.cuda.cudnn is cupy.cuda.cudnn is sys.modules["cupy.cuda.cudnn"]
        assert cuda.libcudnn.getVersion() == 92800
        assert cuda.libcudnn.CUDNN_POOLING_MAX == 0 and cuda.libcudnn.CUDNN_BN_MIN_EPSILON == 0
        assert chainer.should_use_cudnn(">=auto", 7000) and not chainer.should_use_cudnn("==always")
        with chainer.using_config("use_cudnn", "never"):
            assert not chainer.should_use_cudnn(">=auto")
        from chainer.functions.activation import relu
        from chainer.functions.rnn import n_step_rnn
        assert relu._mode == 1 and n_step_rnn._rnn_params_direction
    """
    assert python(code, machine(tmp_path)) == ([], [])


def test_the_bridge_is_in_the_list_of_what_is_replaced_and_can_be_taken_back(tmp_path):
    code = """
        import sys, chainer, cupy
        from mixprec.compat import registry
        names = {name for owner, name in registry.replaced() if owner is None}
        assert names == {"cupy.cudnn", "cupy.cuda.cudnn", "chainer._environment_check"}
        assert sum("n_step" in name or "Transformer" in str(owner) for owner, name in registry.replaced()) == 7
        registry.undo()
        assert not names & sys.modules.keys()
        assert not hasattr(cupy, "cudnn") and not hasattr(cupy.cuda, "cudnn")
        from chainer.functions.rnn import n_step_lstm
        assert n_step_lstm.n_step_lstm_base.__globals__ is vars(n_step_lstm)
    """
    assert python(code, machine(tmp_path)) == ([], [])


MISSING = [
    (NO_FRONTEND, 'nvidia-cudnn-frontend (the Python module cudnn) is missing: pip install -e ".[cuda13]"'),
    (
        {"cudnn.py": "def backend_version(): raise RuntimeError('Unable to find symbol')"},
        'nvidia-cudnn-cu13 (libcudnn.so.9) is missing: pip install -e ".[cuda13]"',
    ),
    (
        {"cuda/pathfinder.py": "def load_nvidia_dynamic_lib(name): raise RuntimeError('no ' + name)"},
        'libcudart.so of CUDA is missing: pip install -e ".[cuda13]"',
    ),
    ({"cudnn.py": "raise AttributeError('half installed\\nand more')"}, "AttributeError: half installed"),
]


@pytest.mark.parametrize(("frontend", "named"), first(2, MISSING), ids=["frontend", "cudnn", "cudart", "broken"])
def test_what_is_missing_is_named_once(tmp_path, frontend, named):
    code = SEEN + "\n    import chainer.functions, chainer.links, chainermn, importlib; importlib.reload(chainermn)"
    found, said = python(code, machine(tmp_path, frontend={**FRONTEND, **frontend}))
    assert found == [OFF]
    assert len(said) == 1
    assert said[0].startswith("plain Chainer has no cuDNN, so that its convolutions are im2col and slow: ")
    assert named in said[0]


OWN = {
    "cupy/cudnn.py": "own = True",
    "cupy/cuda/cudnn.py": "own = True\ndef getVersion(): return 8000\ndef __getattr__(name): return 0",
}


@pytest.mark.slow
@pytest.mark.parametrize("frontend", [FRONTEND, NO_FRONTEND])
def test_cudnn_of_cupy_stays(tmp_path, frontend):
    code = """
        from chainer.backends import cuda
        from chainer.functions.rnn import n_step_rnn
        from mixprec.app.parts import environment
        from mixprec.compat import registry
        print(cuda.cudnn_enabled, cuda._cudnn_version, cuda.cudnn.own, cuda.libcudnn.own)
        print([name for _, name in registry.replaced() if "n_step" in name])
        print(environment.report())
    """
    (first, second, *report), said = python(code, machine(tmp_path, frontend=frontend, more=OWN))
    assert (first, second, said) == ("True 8000 True True", "[]", [])
    assert any(line.startswith("Chainer's cuDNN") and line.endswith("CuPy's own") for line in report)


@pytest.mark.slow
def test_cudnn_of_cupy_that_does_not_load_is_replaced(tmp_path):
    more = {**OWN, "cupy/cudnn.py": "raise ImportError('libcudnn.so.8')"}
    assert python(SEEN, machine(tmp_path, more=more)) == ([ON], [])


@pytest.mark.slow
def test_names_are_those_of_the_functions_when_they_are_asked_for(tmp_path):
    code = """
        import sys, types, pickle, chainer
        from chainer.backends import cuda
        functions = types.ModuleType("mixprec.bridge.functions")
        functions.convolution_forward = lambda: "convolved"
        print("mixprec.bridge.functions" in sys.modules)
        sys.modules["mixprec.bridge.functions"] = functions
        print(cuda.cudnn.convolution_forward(), cuda.cudnn.convolution_forward is functions.convolution_forward)
        del functions.convolution_forward
        print(cuda.cudnn.convolution_forward(), hasattr(cuda.cudnn, "__wrapped__"), hasattr(cuda.cudnn, "_private"))
        for read in (lambda: cuda.cudnn.no_such_name, lambda: cuda.libcudnn.spatialTfSamplerForward):
            try:
                read()
            except AttributeError as error:
                print(error)
    """
    lines, said = python(code, machine(tmp_path))
    assert lines[:3] == ["False", "convolved True", "convolved False False"]
    assert len(lines) == 5
    assert "'no_such_name'" in lines[3]
    assert "'spatialTfSamplerForward'" in lines[4]
    assert said == []


# --- with CuPy as it is


@pytest.mark.plans
@pytest.mark.parametrize("frontend", [FRONTEND, None], ids=["stand-in", "cuDNN"])
def test_importing_chainer_initializes_no_cuda(tmp_path, frontend):
    """With the real CuPy, and the real cuDNN, on a driver that ends the process."""
    pytest.importorskip("cupy", reason="CuPy is not installed")
    if frontend is None:
        pytest.importorskip("cudnn", reason="cuDNN's frontend is not installed")
    env = machine(tmp_path, cupy=False, frontend=frontend)
    code = """
        import sys, chainer, chainer.functions, chainer.links
        from chainer.backends import cuda
        if not cuda.available:
            print(str(cuda._resolution_error).partition(",")[0])
            sys.exit()
        print(cuda.cudnn_enabled, cuda._cudnn_version >= 90000)
        print(chainer.should_use_cudnn(">=auto", 7000))
    """
    lines, said = python(code, env)
    if "libcublasLt" in lines[0]:
        pytest.skip("cuBLAS is not installed, without which Chainer takes no CuPy")
    assert lines == ["True True", "True"]
    assert said == []
    with pytest.raises(AssertionError, match="CUDA was touched"):
        python("import cupy; cupy.cuda.runtime.getDeviceCount()", env)


@pytest.mark.slow
def test_functions_stay_what_they_were(tmp_path):
    """Those that take another branch, being copies, or around the original: as they are seen, copied and pickled."""
    code = """
        import copy, inspect, pickle, chainer
        import chainer.functions as F
        import chainer.links as L
        from chainer.functions.array import spatial_transformer_grid as grid
        from chainer.functions.rnn import n_step_rnn
        from mixprec.compat import rebind
        base = n_step_rnn.n_step_rnn_base
        assert base.__wrapped__.__globals__["chainer"] is n_step_rnn.chainer is chainer
        assert base.__name__ == base.__qualname__ == "n_step_rnn_base" and base.__module__ == n_step_rnn.__name__
        assert "Base function for" in base.__doc__ and str(inspect.signature(base)).startswith("(n_layers, dropout")
        assert pickle.loads(pickle.dumps(base)) is base
        assert n_step_rnn.n_step_rnn_impl.__globals__["chainer"] is chainer
        method = grid.SpatialTransformerGrid.forward_gpu
        assert isinstance(method.__globals__["chainer"], rebind.Overlay)
        assert method.__qualname__ == "SpatialTransformerGrid.forward_gpu"
        for link in (L.NStepLSTM(1, 4, 5, 0.0), grid.SpatialTransformerGrid((3, 2)), F.n_step_bilstm):
            assert type(pickle.loads(pickle.dumps(link))) is type(copy.deepcopy(link)) is type(link)
    """
    assert python(code, machine(tmp_path)) == ([], [])


# --- the report


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "variables", "seen", "row"),
    [
        ({}, {}, ON, "ok by mixprec's bridge to cuDNN 9"),
        ({}, {"MIXPREC_CUDNN": "0"}, OFF, "missing off: MIXPREC_CUDNN=0"),
        # As with CuPy's own cuDNN: the modules are there, and Chainer does not use them.
        ({}, {"CHAINER_CUDNN": "0"}, "True False 2 False", "missing off: CHAINER_CUDNN=0"),
        ({"frontend": NO_FRONTEND, "gpus": 0}, {}, OFF, "not needed without a GPU"),
        ({"gpus": -1}, {}, OFF, "not needed without a GPU"),
        ({}, {"CUDA_VISIBLE_DEVICES": ""}, OFF, "not needed without a GPU"),
        ({"more": {"cupy/__init__.py": "raise ImportError"}}, {}, NO_CUPY, "missing off: CuPy cannot be imported"),
    ],
    ids=["on", "off", "off in Chainer", "no GPU", "NVML fails", "hidden", "no CuPy"],
)
def test_where_there_is_no_gpu_or_it_is_off_nothing_is_placed_and_only_the_report_says_so(
    tmp_path, settings, variables, seen, row
):
    if settings.get("gpus") == -1 and any(glob.glob(pattern) for pattern in gpu_presence._DEVICE_FILES):
        pytest.skip("this machine has a file of a GPU, so that one is there without NVML")
    (first, *lines), said = python(SEEN + REPORT, machine(tmp_path, **settings, **variables))
    assert (first, said) == (seen, [])
    found = [" ".join(line.split()[2:]) for line in lines if line.startswith("Chainer's cuDNN")]
    assert len(found) == 1
    assert found[0].startswith(row)


def test_the_report_without_chainer(monkeypatch):
    monkeypatch.setattr(gpus, "quietly_imported", lambda module: (None, ImportError(module)))
    monkeypatch.setattr(gpus, "is_without_gpu", lambda: False)
    row = {row.name: row for row in environment.components()}["Chainer's cuDNN"]
    assert (row.state, row.note) == ("missing", "needs Chainer")


# --- constants


def test_constants_need_nothing():
    code = """
        import sys
        from mixprec.bridge import constants
        heavy = ("numpy", "chainer", "cupy", "mixprec.backends", "mixprec.compat")
        print([name for name in heavy if name in sys.modules])
    """
    assert python(code, None) == (["[]"], [])


@pytest.mark.plans
def test_constants_are_those_of_the_headers():
    """The C headers that come with nvidia-cudnn."""
    nvidia = pytest.importorskip("nvidia.cudnn", reason="nvidia-cudnn is not installed")
    folder = Path(next(iter(nvidia.__path__)), "include")
    text = "".join(path.read_text(errors="replace") for path in sorted(folder.glob("cudnn_*.h")))
    found = dict(re.findall(r"\b(CUDNN_\w+)(?:\s+CUDNN_DEPRECATED_ENUM)?\s*=\s*(\d+)", text))
    found.update(re.findall(r"#define (CUDNN_BN_MIN_EPSILON) (\S+)", text))
    names = [name for name in vars(constants) if name.startswith("CUDNN_")]
    assert len(names) > 20
    assert {name: float(found[name]) for name in names} == {name: getattr(constants, name) for name in names}


def test_the_version_is_asked_of_the_library(monkeypatch):
    frontend = types.SimpleNamespace(backend_version=lambda: 91900)
    monkeypatch.setattr("mixprec.base.cudnn_library.load", lambda: frontend)
    assert constants.getVersion() == 91900

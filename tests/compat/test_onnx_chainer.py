"""onnx_chainer, which comes with Chainer, on versions of ONNX without ``onnx.mapping``."""

import subprocess
import sys

import pytest

pytest.importorskip("onnx", reason="ONNX is not installed: extra export")

_EXPORT = """
import numpy as np
import chainer.functions as F
import chainer.links as L
import chainer
import onnx_chainer
from onnx import numpy_helper

x = np.array([[1.5, -2]], "float32")
net = chainer.Sequential(L.Linear(2, 3), lambda h: F.cast(h, "float16"), lambda h: F.reshape(h, (1, 3, 1)))
graph = onnx_chainer.export(net, x, opset_version=11)
print([node.op_type for node in graph.graph.node])
shape = next(node.attribute[0].t for node in graph.graph.node if node.op_type == "Constant")
print(numpy_helper.to_array(shape).tolist())
"""


@pytest.mark.parametrize("first", ["", pytest.param("import onnx", marks=pytest.mark.slow)])
def test_a_graph_is_written(first):
    """In a process of its own, whatever is imported first; without warnings."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", first + _EXPORT], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "['Gemm', 'Cast', 'Constant', 'Reshape']\n[1, 3, 1]\n"


def test_without_onnx_it_says_so():
    code = "import sys; sys.modules['onnx'] = None\nimport onnx_chainer\ntry:\n    onnx_chainer.export(None, None)\n"
    code += "except ImportError as error:\n    print(str(error).splitlines()[0])"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ONNX is not installed on your environment.")

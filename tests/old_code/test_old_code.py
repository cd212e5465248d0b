"""The opt-in as a whole, in interpreters of its own: nothing without it, and what old programs need with it."""

import importlib
import os
import sys

import numpy as np
import pytest

from mixprec.compat import package_resources
from mixprec.old_code.nms_gpu_post import _nms_gpu_post
from tests.cases import first
from tests.test_startup import run_python

OLD_PROGRAM = """
    {statement}
    import numpy as np, chainer, collections, inspect, time
    assert np.zeros(1, np.float).dtype == "float64" and np.int is int and np.alltrue([True])
    assert np.bool is np.bool_ and np.long(1).dtype == np.dtype("long")
    assert issubclass(dict, collections.Mapping) and time.clock() and inspect.getargspec(np.ones).args
    print("works")
"""


@pytest.mark.parametrize(("statement", "switch"), first(1, [("import mixprec", "1"), ("import mixprec.old_code", "0")]))
def test_old_program_runs(statement, switch):
    env = {**os.environ, "MIXPREC_OLD_CODE": switch}
    assert run_python(OLD_PROGRAM.format(statement=statement), "-W", "error", env=env).strip() == "works"


@pytest.mark.parametrize("switch", first(1, ["0", ""]))
def test_nothing_is_put_back_unless_it_is_asked_for(switch):
    code = "import mixprec, chainer, numpy, sys; print('float' in vars(numpy), 'mixprec.old_code' in sys.modules)"
    assert run_python(code, env={**os.environ, "MIXPREC_OLD_CODE": switch}).split() == ["False", "False"]


def test_modules_that_are_missing_come_last():
    """``find_spec`` of the package of chainercv would import it; its finder is asked alone."""
    code = """
        import sys, mixprec.old_code, mixprec.compat.package_resources  # and what that imports
        class Without:  # setuptools, as from version 82 on
            def find_spec(name, path=None, target=None):
                return None
        finders = [each for each in sys.meta_path if getattr(each, "__name__", "") == "_LastFinder"]
        assert finders == sys.meta_path[-1:], sys.meta_path
        sys.meta_path[:] = finders
        import pkg_resources
        print(pkg_resources.__file__.endswith("compat/package_resources.py"))
        print(finders[0].find_spec("chainercv.utils.bbox._nms_gpu_post").origin.endswith("nms_gpu_post.py"))
        print(finders[0].find_spec("chainercv"))
    """
    assert run_python(code).split() == ["True", "True", "None"]


def test_package_resources_of_what_is_installed():
    found = package_resources.get_distribution("numpy>=2")
    assert (found.version, found.key) == (np.__version__, "numpy")
    assert package_resources.parse_version("1.10") > package_resources.parse_version("1.9")
    assert package_resources.require("chainer==7.8.1", "numpy")[0].project_name == "chainer"
    with pytest.raises(package_resources.DistributionNotFound, match="not-there is not installed"):
        package_resources.get_distribution("not-there")
    with pytest.raises(package_resources.VersionConflict, match=r"chainer 7\.8\.1 is installed"):
        package_resources.require("chainer<5")
    assert {each.name for each in package_resources.iter_entry_points("console_scripts", "f2py")} <= {"f2py"}
    assert {"numpy", "chainer"} <= {each.key for each in package_resources.working_set}


def test_package_resources_declares_namespaces(tmp_path, monkeypatch):
    """As old protobuf does for ``google``, which falls back to pkgutil only where there is no pkg_resources at all."""
    monkeypatch.setitem(sys.modules, "pkg_resources", package_resources)
    for name in ("here", "there"):
        (package := tmp_path / name / "mixprec_namespace").mkdir(parents=True)
        (package / "__init__.py").write_text("__import__('pkg_resources').declare_namespace(__name__)")
        (package / f"{name}.py").write_text("")
    try:
        for name in ("here", "there"):
            monkeypatch.syspath_prepend(tmp_path / name)  # which looks for more folders
            importlib.import_module(f"mixprec_namespace.{name}")
    finally:
        for name in [name for name in sys.modules if name.startswith("mixprec_namespace")]:
            del sys.modules[name]


def test_package_resources_reads_files_of_a_package():
    name = ("mixprec.compat", "summary.py")
    assert package_resources.resource_exists(*name)
    assert "summary.py" in package_resources.resource_listdir("mixprec", "compat")
    with package_resources.resource_stream(*name) as file:
        assert file.read() == package_resources.resource_string(*name)


@pytest.mark.parametrize("boxes", [3, 64, 130])
def test_boxes_that_others_suppress_are_left_out(boxes):
    """Each box suppresses those of a random matrix, of the boxes after it."""
    suppresses = np.triu(np.random.RandomState(boxes).rand(boxes, boxes) < 0.02, 1)
    expected = []
    for box in range(boxes):
        if not any(suppresses[other, box] for other in expected):
            expected.append(box)
    blocks = -(-boxes // 64)
    bits = np.zeros((boxes, blocks * 64), np.uint8)
    bits[:, :boxes] = suppresses
    mask = np.packbits(bits, axis=1, bitorder="little").view(np.uint64).reshape(-1)
    selection, count = _nms_gpu_post(mask, boxes, 64, np.int32(blocks))
    np.testing.assert_array_equal(selection[:count], expected)
    assert selection.shape == (boxes,)

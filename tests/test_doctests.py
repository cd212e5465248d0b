"""The examples in the docstrings of mixprec's public names run, and each of these names has one."""

import doctest
import importlib
import importlib.util
import pkgutil

import pytest

import mixprec
from mixprec.compat import registry

_PACKAGES = ["mixprec", *(m.name for m in pkgutil.walk_packages(mixprec.__path__, "mixprec.") if m.ispkg)]
_EXPORTED = {
    f"{package}.{name}": getattr(module, name)
    for package in (*_PACKAGES, "mixprec.patches")
    for module in [importlib.import_module(package)]
    for name in getattr(module, "__all__", ())
    if name != "onnx" or importlib.util.find_spec("onnxruntime") is not None  # as beside the extra legacy
}


@pytest.mark.parametrize("module", sorted({each.__module__ for each in _EXPORTED.values()}))
def test_examples_run(module, monkeypatch):
    monkeypatch.setattr(registry, "_patches", list(registry._patches))  # examples declare some
    assert doctest.testmod(importlib.import_module(module)).failed == 0


@pytest.mark.parametrize("name", _EXPORTED)
def test_an_exported_name_has_an_example(name):
    assert doctest.DocTestFinder(recurse=False).find(_EXPORTED[name])[0].examples

"""The examples in the docstrings of mixprec's public names run, and give what they say."""

import doctest
import importlib

import pytest

import mixprec
from mixprec.base.optimizer_names import OWN

_EXAMPLES = ["DynamicLossScale", "MixedPrecisionOptimizer", "NoLossScale", "StaticLossScale", *OWN]


@pytest.mark.parametrize("module", sorted({getattr(mixprec, name).__module__ for name in mixprec.__all__}))
def test_examples_run(module):
    assert doctest.testmod(importlib.import_module(module)).failed == 0


@pytest.mark.parametrize("name", _EXAMPLES)
def test_a_class_that_users_make_has_an_example(name):
    assert doctest.DocTestFinder(recurse=False).find(getattr(mixprec, name))[0].examples

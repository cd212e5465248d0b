"""The examples of the public functions."""

import doctest

import mixprec


def test_the_example_of_capture_runs():
    (example,) = doctest.DocTestFinder(recurse=False).find(mixprec.capture, "capture", globs={})
    assert len(example.examples) > 5
    assert doctest.DocTestRunner().run(example).failed == 0

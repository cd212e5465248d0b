"""The interface of work that can be captured, and the examples of the public functions."""

import doctest

import pytest

import mixprec
from mixprec.graph_capture.capturable import Capturable, GraphSession
from mixprec.graph_capture.captured_evaluation import Evaluation, EvaluationSession
from mixprec.graph_capture.graph_step import TrainingSession, TrainingStep


@pytest.mark.parametrize("interface", [Capturable, GraphSession])
def test_the_interface_by_itself_is_no_work(interface):
    with pytest.raises(TypeError, match="abstract"):
        interface()


@pytest.mark.parametrize(
    ("interface", "implementations"),
    [(Capturable, {TrainingStep, Evaluation}), (GraphSession, {TrainingSession, EvaluationSession})],
)
def test_the_training_step_and_the_evaluation_are_its_implementations(interface, implementations):
    assert set(interface.__subclasses__()) == implementations
    public = {name for name in vars(interface) if not name.startswith("_")}
    for each in implementations:
        assert {name for name in vars(each) if not name.startswith("_")} <= public | {"name", "model"}


def test_the_example_of_capture_runs():
    (example,) = doctest.DocTestFinder(recurse=False).find(mixprec.capture, "capture", globs={})
    assert len(example.examples) > 5
    assert doctest.DocTestRunner().run(example).failed == 0

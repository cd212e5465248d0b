"""The choice between candidates, and the engines that are built for it: none, if it is known."""

import numpy as np
import pytest

from mixprec.backends.cuda import candidates
from mixprec.backends.cudnn import settings
from mixprec.backends.geometry import BatchNorm
from tests.stand_ins import fake_cudnn
from tests.stand_ins.cuda_on_host import HostCuda, send

X = (2, 3, 3, 16)


@pytest.fixture
def graphs(monkeypatch):
    """The kinds of nodes of each graph that is made, and the engines that are built in all."""
    made, built = [], []
    step, build = fake_cudnn.pygraph.create_execution_plans, fake_cudnn.pygraph.build_plan_at_index

    def create(self, modes):
        made.append("+".join(node.kind for node in self.nodes))
        step(self, modes)

    monkeypatch.setattr(fake_cudnn.pygraph, "create_execution_plans", create)
    monkeypatch.setattr(
        fake_cudnn.pygraph, "build_plan_at_index", lambda self, index: (built.append(index), build(self, index))
    )
    return made, built


def normalize(cuda):
    """A batch normalization with an addition and a ReLU, forward and backward."""
    rng = np.random.default_rng(0)
    x, dy, add = (send(rng.standard_normal(X).astype(np.float16)) for _ in range(3))
    gamma, beta, mean, variance = (send(np.ones(X[-1], np.float32)) for _ in range(4))
    attributes = BatchNorm(relu=True)
    _, saved = cuda.batch_norm(x, gamma, beta, (mean, variance), attributes, add=add)
    cuda.batch_norm_backward(dy, x, gamma, beta, saved, attributes, add=True)
    return mean


@pytest.mark.parametrize(("node_cost", "operations"), [(0.1, 2), (2.0, 0)], ids=["cudnn", "kernels"])
def test_a_known_choice_builds_one_engine_of_what_is_taken(graphs, tmp_path, node_cost, operations):
    """In the next process: cuDNN's two operations, with one engine each, or nothing where own kernels are faster."""
    settings.configure(autotune="measure", cache=tmp_path)
    made, built = graphs
    expected = normalize(HostCuda(node_cost))
    assert len(made) == 2
    assert len(built) >= 4
    made.clear()
    built.clear()
    np.testing.assert_array_equal(normalize(HostCuda(node_cost)), expected)
    assert (len(made), len(built)) == (operations, operations)


def test_a_choice_that_is_no_way_any_more_is_made_again(graphs, tmp_path, monkeypatch):
    settings.configure(autotune="measure", cache=tmp_path)
    cuda = HostCuda(2.0)
    normalize(cuda)
    (path,) = tmp_path.glob("*.json")
    path.write_text(path.read_text().replace('"kernels"', '"magic"'))
    made, _ = graphs
    made.clear()
    normalize(HostCuda(2.0))
    assert len(made) == 2
    assert '"magic"' not in path.read_text()


def test_choices_are_made_again_with_other_kernels_and_engines_are_not(graphs, tmp_path, monkeypatch):
    """Kernels may be faster than before, or there may be another candidate."""
    settings.configure(autotune="measure", cache=tmp_path)
    normalize(HostCuda(0.1))
    made, built = graphs
    made.clear()
    built.clear()
    with monkeypatch.context() as patched:
        patched.setattr(candidates, "_code", lambda: "01234567")
        cuda = HostCuda(2.0)
        with cuda.counting() as found:
            normalize(cuda)
        assert found.kernels > 20
    assert len(built) == 2
    cuda = HostCuda(2.0)
    with cuda.counting() as found:
        normalize(cuda)
    assert found.kernels == 0  # what was chosen with the former ones is still there


def test_nothing_is_known_where_nothing_is_measured(graphs, tmp_path):
    settings.configure(autotune="measure", cache=tmp_path)
    normalize(HostCuda(2.0))
    settings.configure(autotune="heuristic")
    cuda = HostCuda(2.0)
    with cuda.counting() as found:
        normalize(cuda)
    assert (found.kernels, len(found.plans)) == (0, 2)  # the first candidate, which is cuDNN's

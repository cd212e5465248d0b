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
    settings.configure(autotune="measure", cache=tmp_path, compile_seconds=3)
    made, built = graphs
    expected = normalize(HostCuda(node_cost))
    assert len(made) == 2
    assert len(built) >= 4
    made.clear()
    built.clear()
    np.testing.assert_array_equal(normalize(HostCuda(node_cost)), expected)
    assert (len(made), len(built)) == (operations, operations)


def test_choices_are_made_again_with_other_kernels_and_engines_are_not(graphs, tmp_path, monkeypatch):
    """Kernels may be faster than before, or there may be another candidate."""
    settings.configure(autotune="measure", cache=tmp_path, compile_seconds=3)
    normalize(HostCuda(0.1))
    made, built = graphs
    made.clear()
    built.clear()
    with monkeypatch.context() as patched:
        patched.setattr(candidates, "_digest", lambda starts: "01234567")
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
    settings.configure(autotune="measure", cache=tmp_path, compile_seconds=3)
    normalize(HostCuda(0.1))
    settings.configure(autotune="heuristic")
    cuda = HostCuda(0.1)
    with cuda.counting() as found:
        normalize(cuda)
    assert (found.kernels, found.plans) == (4, [])  # the first candidates, which are own kernels


def test_what_was_tuned_is_taken_by_a_start_that_compiles_nothing(graphs, tmp_path):
    """``mixprec tune`` has compiled cuDNN's engines; training, which would not, loads those that were faster."""
    settings.configure(autotune="measure", cache=tmp_path, compile_seconds=3)
    normalize(HostCuda(0.1))
    settings.configure(compile_seconds=0)
    cuda = HostCuda(0.1)
    with cuda.counting() as found:
        normalize(cuda)
    assert (found.kernels, len(found.plans)) == (0, 2)


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("autotune", settings.AUTOTUNE)
def test_no_engine_of_a_batch_normalization_is_built(graphs, autotune, capability):
    settings.configure(autotune=autotune)
    normalize(HostCuda(0.1, capability))
    assert graphs == ([], [])


@pytest.mark.parametrize(("capability", "counted"), [(90, {2}), (80, {2 * 6, 2 * 16})])
def test_what_is_ruled_is_not_measured_on_an_h100(graphs, capability, counted):
    """Elsewhere both orders of own kernels are, each with two launches: once before, 5 or 15 times, and then taken."""
    settings.configure(autotune="measure")
    cuda = HostCuda(1.0, capability)
    x, gamma = send((np.ones(X, np.float16), np.ones(X[-1], np.float32)))
    with cuda.counting() as found:
        cuda.batch_norm(x, gamma, gamma, None, BatchNorm())
    assert found.kernels in {number if capability == 90 else 2 * number + 2 for number in counted}


@pytest.mark.parametrize(("capability", "said"), [(90, 0), (80, 1)])
def test_a_rule_that_is_a_guess_is_said_once(caplog, capability, said):
    candidates._say_guess.cache_clear()
    caplog.set_level("INFO", "mixprec")
    for autotune in ("measure", "heuristic", "off"):
        settings.configure(autotune=autotune)
        cuda = HostCuda(1.0, capability)
        normalize(cuda)
    lines = [record.getMessage() for record in caplog.records if "measured on an H100" in record.getMessage()]
    assert len(lines) == said
    assert not said or lines[0].startswith("sm_80: convolutions and batch normalizations are computed by rules")

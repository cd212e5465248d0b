"""Programs of one's own: a rank whose program ends before the others' is named where they wait for it."""

import sys
import textwrap

import pytest

from tests import mpi
from tests.cases import first
from tests.distributed import programs

PROGRAM = """
    WAY = sys.argv[1]
    # Nothing here ends all ranks after an exception: chainermn.global_except_hook is left out.
    def train():
        model, optimizer = built(averaged, optimizers.SGD(0.1), norm=False)
        if WAY == "setup":
            sys.exit(0) if rank == size - 1 else optimizer.setup(model)
        for step in range(20):
            if rank == size - 1 and step == 3:
                if WAY == "sys.exit(0)":
                    sys.exit(0)
                elif WAY == "raise":
                    raise GeneratorExit
            x, t = (array[step % 20, own] for array in images)
            if WAY == "forward" and rank == size - 1 and step == 3:
                optimizer.update(lambda: sys.exit(3))
            optimizer.update(model, x, t)
    train()
    if WAY == "late" and rank == 0:
        time.sleep(3)  # alone, as in an evaluation: it waits for none that has left
    say("end")
"""
IN_THE_MIDDLE = """
    class Leave(chainer.FunctionNode):
        def forward(self, inputs):
            return inputs[0].copy(),

        def backward(self, indexes, gradients):
            if rank == 0 and step == 2:  # the order of gradients is known
                sys.exit(0)
            return gradients[0],

    np.random.seed(0)
    model = chainer.Sequential(L.Linear(8, 1000), lambda h: Leave().apply((h,))[0], L.Linear(1000, 1000))
    optimizer = averaged(optimizers.SGD(0.1)).setup(model)
    for step in range(5):
        optimizer.update(lambda: F.sum(model(np.ones((2, 8), "f"))))
"""
NAMED = "RankLeft: rank {} has left: its program has ended, and this rank waits for it in update() or setup(): "


def _run(tmp_path, ranks, way, program=PROGRAM):
    file = tmp_path / "program.py"
    parts = (programs.SETTING, program)
    file.write_text("\n".join(textwrap.dedent(part).strip("\n") for part in parts))
    return mpi.launch(ranks, [sys.executable, file, way], tmp_path, 60)


@pytest.mark.parametrize(
    ("ranks", "way"), first(0, [(2, "sys.exit(0)"), (3, "forward"), (2, "raise"), (2, "setup")], 2)
)
def test_a_rank_that_has_left_is_an_error_where_others_wait_for_it(tmp_path, ranks, way):
    done = _run(tmp_path, ranks, way)
    assert NAMED.format(ranks - 1) in done.stderr, done.stderr
    assert done.returncode


@pytest.mark.slow
def test_a_rank_that_leaves_in_the_middle_of_its_sums_has_left(tmp_path):
    """They are large: MPI sends them only when the other side asks for them."""
    done = _run(tmp_path, 2, "", IN_THE_MIDDLE)
    assert NAMED.format(0) in done.stderr, done.stderr
    assert done.returncode


@pytest.mark.slow
def test_ranks_that_end_one_after_the_other_are_right(tmp_path):
    done = _run(tmp_path, 3, "late")
    assert (done.returncode, done.stderr, done.stdout) == (0, "", 3 * "end\n")

"""Updates that fail: in the forward pass, in the backward pass, in a hook; on one rank, on all."""

import numpy as np
import pytest
from chainer import optimizers

import mixprec
from mixprec.optimizer.counted_losses import CountedLosses
from tests.distributed.runs import assert_same_runs, batch, built
from tests.stand_ins.twin_transport import wrapped
from tests.stand_ins.update_pair import new_optimizer

pytestmark = pytest.mark.usefixtures("twins")


def test_more_losses_than_were_said():
    model, optimizer = built("float32", optimizers.SGD(), wrapped)
    optimizer.update(model, *batch(0))
    with pytest.raises(ValueError, match="more of them than its length hint says"):
        optimizer.update(lambda: CountedLosses((model(*batch(step)) for step in range(2)), 1))
    with pytest.raises(RuntimeError, match="ranks are out of step"):
        optimizer.update(model, *batch(0))


def test_a_loss_function_that_fails_ends_training():
    """Others may wait for the gradients of this rank: the next sums would be of other things, or without end."""
    model, optimizer = built("float32", optimizers.SGD(), wrapped)
    for _ in range(2):
        optimizer.update(model, *batch(0))
    with pytest.raises(ZeroDivisionError):
        optimizer.update(lambda: 1 / 0)
    with pytest.raises(RuntimeError, match="the previous step failed on rank 0, whose gradients others may wait for"):
        optimizer.update(model, *batch(1))


@pytest.mark.parametrize("when", ["backward pass", "first step"])
def test_one_process_alone_goes_on_after_a_failure(when, twins):
    twins.size, twins.other = 1, np.zeros_like

    def run(model, optimizer):
        if when != "first step":
            optimizer.update(model, *batch(0))

        def losses():
            if when != "backward pass":
                raise ZeroDivisionError
            yield model(*batch(1))
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            optimizer.update(lambda: CountedLosses(losses(), 1))
        optimizer.update(model, *batch(1))

    assert_same_runs(run, "float32", lambda: new_optimizer("Adam"))


def test_an_update_that_fails_on_one_rank_only_is_found_in_the_next(twins):
    """On all ranks it is none: as if there had been no step."""

    def run(model, optimizer):
        def hook(optimizer):
            if optimizer.t == 1 and failures:
                raise ZeroDivisionError(failures.pop())

        failures = ["planted"]
        optimizer.add_hook(hook, "mine")
        optimizer.update(model, *batch(0))
        with pytest.raises(ZeroDivisionError):
            optimizer.update(model, *batch(1))
        optimizer.update(model, *batch(2))

    assert_same_runs(run, "float16", lambda: new_optimizer("Adam"))
    model, optimizer = built("float32", optimizers.SGD(), wrapped)
    optimizer.update(model, *batch(0))
    description = optimizer._ranks._exchange.members.description
    twins.gather = lambda value: [value, (description, 2, None)]
    twins.other = lambda array: array + array.size if array.size == 2 else array
    with pytest.raises(RuntimeError, match="rank 0 has done 1 updates, rank 1 2, and ranks are out of step"):
        optimizer.update(model, *batch(0))
    assert optimizer.t == 1


ENDS = [
    (np.nan, "; on rank 0: the batch itself holds 0 inf, 1 NaN of 648"),
    (0, "; on rank 0: every activation is finite, so that the overflow is in the backward pass, or on another rank"),
]


@pytest.mark.parametrize(("bad", "end"), ENDS)
def test_training_that_has_diverged_is_described_as_seen_from_this_rank(bad, end, twins):
    """Gradients are the mean over ranks, activations those of one."""
    twins.other = lambda array: np.full_like(array, np.nan) if array.dtype == np.float32 else array
    model, optimizer = built("float32", optimizers.SGD(), wrapped, loss_scale=mixprec.DynamicLossScale(patience=2))
    x, t = batch(0)
    x[0, 0, 0, 0] = bad
    optimizer.update(model, x, t)
    with pytest.raises(mixprec.LossScaleExhausted) as error:
        optimizer.update(model, x, t)
    assert str(error.value).endswith(end)

"""Gradients averaged by MPI: several processes train as one, and each of them the same, bit for bit."""

import pytest

from tests import mpi
from tests.distributed.programs import CORE, SETTING


@pytest.mark.slow
def test_two_processes():
    """The core: one run of many checks, as it takes two seconds to start."""
    code = """
        one_process_with_all_images()
        bit_for_bit_the_naive_communicator()
        overflows_on_single_ranks("float16", 40)
        overflows_on_single_ranks("bfloat16", 20, allreduce_dtype="bfloat16")
        a_search_for_the_first_scale()
        parameters_that_some_ranks_do_not_use()
        sent_during_the_pass()
        say("right")
    """
    assert mpi.run(2, SETTING, CORE, code) == ["right"] * 2


@pytest.mark.long
def test_three_processes():
    code = """
        one_process_with_all_images()
        a_search_for_the_first_scale()
        overflows_on_single_ranks("float16", 100, allreduce_dtype="float16")
        parameters_that_some_ranks_do_not_use()
        say("right")
    """
    assert mpi.run(3, SETTING, CORE, code) == ["right"] * 3


@pytest.mark.slow
def test_an_exception_on_one_rank_ends_all():
    """While the others wait for its gradients."""
    code = """
        chainermn.global_except_hook.add_hook()
        model, optimizer = built(averaged, optimizers.SGD())
        def lossfun(step):
            yield model(images[0][step][own], images[1][step][own])
            if step == 2 and rank == 1:
                raise ArithmeticError("planted")
        for step in range(4):
            optimizer.update(lambda: CountedLosses(lossfun(step), 1))
    """
    with pytest.raises(AssertionError, match="ArithmeticError: planted"):
        mpi.run(2, SETTING, code)


@pytest.mark.slow
def test_an_optimizer_that_goes_while_gradients_are_on_their_way():
    """MPI may write into their memory until the end; what rank 0 alone has sent reaches no other optimizer."""
    code = """
        import gc
        from mixprec.distributed.step_check import StepCheck
        is_agreed, fails = StepCheck.is_agreed, False
        StepCheck.is_agreed = lambda self: not (fails and rank) and is_agreed(self)
        x = np.zeros((4, 300), "f")
        for number in range(10):
            model = chainer.Sequential(*[L.Linear(300, 300) for _ in range(6)])
            optimizer = averaged(optimizers.SGD()).setup(model)

            def losses():
                global fails
                fails = True
                time.sleep(0.02)  # until rank 0 knows that both are at the same step
                yield F.sum(model(x))
                fails = False
                raise ArithmeticError

            for update in ([lambda: F.sum(model(x))] * 2) + [lambda: CountedLosses(losses(), 1)]:
                try:
                    optimizer.update(update)
                except ArithmeticError:
                    pass
            del optimizer, model, update
            gc.collect()
            others = [np.ones(300 * 300 * 6, "f") for _ in range(3)]
            communicator.mpi_comm.barrier()
            assert all((other == 1).all() for other in others)
        say("right")
    """
    assert mpi.run(2, SETTING, code) == ["right"] * 2


@pytest.mark.slow
def test_an_exit_while_gradients_are_on_their_way():
    """Nothing is freed that MPI still writes into; mpi.run sees to the exit code."""
    code = """
        model, optimizer = built(averaged, optimizers.SGD())
        for step in range(2):
            optimizer.update(model, images[0][step][own], images[1][step][own])

        def losses():
            yield model(images[0][0][own], images[1][0][own])
            sys.exit(0)

        optimizer.update(lambda: CountedLosses(losses(), 1))
    """
    assert mpi.run(3, SETTING, code) == []


@pytest.mark.slow
def test_differences_between_ranks_are_errors_on_all():
    """At setup, and in a later step: no rank waits for another one."""
    code = """
        def error(function):
            try:
                function()
            except ValueError as error:
                return str(error)
            return "no error"

        last = rank == size - 1
        other = L.Linear(3, 5 if last else 4)
        found = [error(lambda: averaged(optimizers.SGD()).setup(chainer.ChainList(other)))]
        scale = mixprec.DynamicLossScale(interval=100 if last else 200)
        found += [error(lambda: averaged(optimizers.SGD(), scale).setup(L.Linear(3, 3)))]
        model, optimizer = built(averaged, optimizers.SGD())
        for step in range(3):
            optimizer.update(model, images[0][step][own], images[1][step][own])
        if last:
            model.predictor.add_link("another", L.Linear(2, 2))
        found += [error(lambda: optimizer.update(model, images[0][0][own], images[1][0][own]))]
        if last:
            del model.predictor.another
        for step in range(3):
            optimizer.update(model, images[0][step][own], images[1][step][own])
        assert_same_everywhere(model, optimizer)
        if rank == 0:
            for each in found:
                say(each)
        assert communicator.mpi_comm.bcast(found) == found
    """
    expected = [
        "interval of the loss scale is 200 on rank 0, 100 on rank 2: give all ranks the same",
        "rank 2 has a parameter /predictor/another/W, rank 0 has not: all ranks need the same model",
        "the shape of /0/W is (4, 3) on rank 0, (5, 3) on rank 2: all need the same model",
    ]
    assert mpi.run(3, SETTING, code) == expected

"""Gradients averaged by MPI: several processes train as one, and each of them the same, bit for bit."""

import pytest

from tests import mpi
from tests.distributed.programs import CORE, SETTING, SWEEP


def test_two_processes():
    """The core: one run of many checks, as it takes two seconds to start."""
    code = """
        one_process_with_all_images()
        bit_for_bit_the_naive_communicator()
        overflows_on_single_ranks("float16", 40)
        overflows_on_single_ranks("bfloat16", 20, allreduce_dtype="bfloat16")
        a_search_for_the_first_scale()
        parameters_that_some_ranks_do_not_use()
        another_layer_in_the_place_of_one()
        an_own_backward()
        sent_during_the_pass()
        say("right")
    """
    assert mpi.run(2, SETTING, CORE, code) == ["right"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 3])
def test_overflows(processes):
    code = """
        one_process_with_all_images()
        if size != 3:
            bit_for_bit_the_naive_communicator()
        a_search_for_the_first_scale()
        overflows_on_single_ranks("float16", 200, allreduce_dtype="float16")
        overflows_on_single_ranks("bfloat16", 200)
        parameters_that_some_ranks_do_not_use()
        an_own_backward()
        say("right")
    """
    assert mpi.run(processes, SETTING, CORE, code) == ["right"] * processes


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_all_rules_dtypes_and_several_losses(processes):
    code = """
        if size == 2:
            all_rules()
        all_dtypes_of_sums()
        several_losses()
        say("right")
    """
    assert mpi.run(processes, SETTING, SWEEP, code) == ["right"] * processes


@pytest.mark.slow
@pytest.mark.parametrize("during", ["forward", "backward"])
def test_an_exception_on_one_rank_ends_all(during):
    """While the others wait for its gradients."""
    code = f"""
        chainermn.global_except_hook.add_hook()
        model, optimizer = built(averaged, optimizers.SGD())
        def lossfun(step):
            loss = model(images[0][step][own], images[1][step][own])
            if step == 2 and rank == 1 and {during!r} == "forward":
                raise ArithmeticError("planted")
            yield loss
            if step == 2 and rank == 1:
                raise ArithmeticError("planted")
        for step in range(4):
            optimizer.update(lambda: CountedLosses(lossfun(step), 1))
    """
    with pytest.raises(AssertionError, match="ArithmeticError: planted"):
        mpi.run(2, SETTING, code)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3])
def test_a_hook_that_fails_on_one_rank_is_found_on_all(processes):
    """The others have updated: without an error they would train on with other parameters."""
    code = """
        def hook(optimizer):
            if planted and rank == 1:
                raise ArithmeticError("planted")

        planted = False
        model, optimizer = built(averaged, optimizers.SGD())
        optimizer.add_hook(hook, "mine")
        for step in range(4):
            planted = step == 2
            try:
                optimizer.update(model, images[0][step][own], images[1][step][own])
            except (ArithmeticError, RuntimeError) as error:
                say(step, error)
    """
    error = "3 rank 0 has done 3 updates, rank 1 2, and ranks are out of step: end the program when an update fails"
    assert mpi.run(processes, SETTING, code) == ["2 planted", *[error] * processes]


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
    for _ in range(5):
        assert mpi.run(3, SETTING, code) == []


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_differences_between_ranks_are_errors_on_all(processes):
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
        more = chainer.ChainList(*(L.Linear(3, 3) for _ in range(1 + last)))
        found += [error(lambda: averaged(optimizers.SGD()).setup(more))]
        found += [error(lambda: averaged(optimizers.SGD(), 128.0 if last else 64.0).setup(L.Linear(3, 3)))]
        scale = mixprec.DynamicLossScale(interval=100 if last else 200)
        found += [error(lambda: averaged(optimizers.SGD(), scale).setup(L.Linear(3, 3)))]
        found += [error(lambda: averaged(optimizers.SGD(), allreduce_dtype="float16" if last else None).setup(other))]
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
    rank = processes - 1
    expected = [
        f"the shape of /0/W is (4, 3) on rank 0, (5, 3) on rank {rank}: all need the same model",
        f"rank {rank} has a parameter /1/W, rank 0 has not: all ranks need the same model",
        f"value of the loss scale is 64.0 on rank 0, 128.0 on rank {rank}: give all ranks the same",
        f"interval of the loss scale is 200 on rank 0, 100 on rank {rank}: give all ranks the same",
        f"the shape of /W is (4, 3) on rank 0, (5, 3) on rank {rank}: all need the same model",
        f"rank {rank} has a parameter /predictor/another/W, rank 0 has not: all ranks need the same model",
    ]
    assert mpi.run(processes, SETTING, code) == sorted(expected)

"""Batch normalization of the batches of several processes by the CUDA kernels, run on the host."""

import numpy as np
import pytest

from mixprec.backends.geometry import BatchNorm
from tests.backends.primitive_cases import FLOAT32, arrays, channel_parameters
from tests.stand_ins import rank_threads
from tests.stand_ins.cuda_on_host import HostCuda, receive, send


@pytest.fixture(scope="module")
def cuda():
    return HostCuda()


@pytest.mark.parametrize("relu", [False, True])
def test_one_process_finds_what_it_finds_without_ranks(cuda, relu):
    """To the last bits of float32, of which the standard deviation loses two on its way; three launches each way."""
    rng = np.random.default_rng(0)
    x, dy, add = send(tuple(arrays(rng, (3, 50, 12), FLOAT32)))
    parameters, attributes = send(tuple(channel_parameters(rng, 12))), BatchNorm(relu=relu)

    def both(rank, ranks):
        sides = []
        for each in (None, ranks):
            with cuda.counting() as counted:
                y, saved = (
                    cuda._forward_by_kernels(attributes, False, x, *parameters, None, add)
                    if each is None
                    else (cuda.batch_norm(x, *parameters, None, attributes, add=add, ranks=each))
                )
                gradients = cuda._backward_by_kernels(relu, True, False, dy, x, *parameters, saved, None, None, each)
            sides.append(([y, *gradients], counted.kernels))
        return sides

    (alone, kernels), (as_one_rank, kernels_of_rank) = rank_threads.run(1, both)[0]
    assert (kernels, kernels_of_rank) == (4, 6)
    for expected, found in zip(receive(tuple(alone)), receive(tuple(as_one_rank)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)

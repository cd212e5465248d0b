"""K-FAC on several processes under MPI, with batch normalizations over all of them."""

import pytest

from tests import mpi
from tests.distributed.programs import SETTING

_PROGRAM = """
    from chainermn.links import MultiNodeBatchNormalization

    class Normalized(chainer.Chain):
        def __init__(self, normalization):
            super().__init__()
            np.random.seed(0)
            with self.init_scope():
                self.first = L.Convolution2D(2, 8, 3, pad=1, nobias=True)
                self.second = L.Convolution2D(8, 8, 3, stride=2, groups=2, nobias=True)
                self.norm, self.other = normalization(8), normalization(8)
                self.out = L.Linear(8, 5)

        def forward(self, x):
            h = self.norm(self.first(x))
            h = F.relu(self.other(self.second(F.relu(h))))
            return self.out(F.mean(h, axis=(2, 3)))

    def made(normalization, communicator, compute, loss_scale=64.0):
        kfac = mixprec.KFAC(damping=0.1, factor_every=2, inverse_every=4)
        model = L.Classifier(Normalized(normalization))
        rule = optimizers.MomentumSGD(0.05)
        optimizer = mixprec.MixedPrecisionOptimizer(rule, loss_scale, preconditioner=kfac, communicator=communicator)
        optimizer.setup(model)
        mixprec.convert(model, images[0][0, :B], compute=compute)
        return model, optimizer, kfac

    def of_all(size):
        return MultiNodeBatchNormalization(size, communicator)

    def state(model, optimizer, kfac):
        return {**masters(model, optimizer), **kfac.state()}

    def assert_all_same(model, optimizer, kfac):
        assert_same_everywhere(model, optimizer)
        mine = {name: np.asarray(array).tobytes() for name, array in kfac.state().items()}
        for other in communicator.mpi_comm.allgather(mine):
            assert other == mine

    def one_process_with_all_images():
        several, one = made(of_all, communicator, "float32"), made(L.BatchNormalization, None, "float32")
        for x, t in zip(images[0][:12], images[1][:12]):
            several[1].update(several[0], x[own], t[own])
            one[1].update(one[0], x, t)
        assert "2 batch normalizations" in several[2].report()
        expected = state(*one)
        for name, array in state(*several).items():
            limit = 1e-5 * abs(expected[name]).max()
            np.testing.assert_allclose(array, expected[name], rtol=0, atol=limit, err_msg=name)
        assert_all_same(*several)
"""


@pytest.mark.slow
def test_two_processes():
    code = """
        one_process_with_all_images()
        say("right")
    """
    assert mpi.run(2, SETTING, _PROGRAM, code) == ["right"] * 2

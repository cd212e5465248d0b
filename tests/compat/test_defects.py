"""Defects of Chainer 7.8.1 itself."""

import chainer
import chainer.functions as F
import numpy as np
import pytest
from chainer import serializers


def test_deconvolution_2d_has_a_weight_gradient_when_its_input_needs_none():
    """Sum of the output over all places: each weight meets every input once, so gW is the sum of x."""
    x = chainer.Variable(np.random.RandomState(0).randn(2, 3, 5, 5).astype("float32"), requires_grad=False)
    w = chainer.Variable(np.ones((3, 2, 3, 3), "float32"))
    F.sum(F.deconvolution_2d(x, w)).backward()
    expected = np.broadcast_to(x.array.sum((0, 2, 3))[:, None, None, None], w.shape)
    np.testing.assert_allclose(w.grad, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("train", [True, False])
def test_batch_normalization_in_float16_has_gradients_of_gradients(train):
    """Chainer alone has them if x and gamma are in one dtype; here float64, of the same numbers."""
    arrays = [
        np.random.RandomState(seed).rand(*shape).astype("e") for seed, shape in enumerate([(4, 3, 5), (3,), (3,)])
    ]

    def penalty(dtype, statistics):
        x, gamma, beta = map(chainer.Variable, [arrays[0].astype(dtype), *(a.astype(statistics) for a in arrays[1:])])
        if train:
            y = F.batch_normalization(x, gamma, beta)
        else:
            y = F.fixed_batch_normalization(x, gamma, beta, beta.array, gamma.array)
        (gx,) = chainer.grad([F.sum(F.cast(y, statistics) ** 3)], [x], enable_double_backprop=True)
        F.sum(F.cast(gx, statistics) ** 2).backward()
        return x.grad, gamma.grad

    for found, expected in zip(penalty("e", "f"), penalty("d", "d"), strict=True):
        assert np.linalg.norm(found - expected) <= 2.0**-8 * np.linalg.norm(expected)


def test_hdf5_deserializer_reads_strings_as_strings(tmp_path):
    """Chainer alone reads "b'abc'"."""
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    with h5py.File(tmp_path / "file.h5", "w") as file:
        file.create_dataset("text", data="abc")
        file.create_dataset("number", data=3)
        deserializer = chainer.serializers.HDF5Deserializer(file, strict=False)
        assert deserializer("text", "") == "abc"
        assert deserializer("number", 1) == 3
        assert deserializer("missing", "as it was") == "as it was"


@pytest.mark.parametrize("kind", ["npz", "hdf5"])
def test_arrays_in_any_order_are_loaded_in_place(kind, tmp_path):
    """A filter (K, C, R, S) whose memory is (K, R, S, C), and one with gaps; h5py alone refuses both."""
    if kind == "hdf5":
        pytest.importorskip("h5py", reason="h5py is not installed")
    values = np.arange(24, dtype="f").reshape(2, 3, 2, 2)
    saved = chainer.Link()
    with saved.init_scope():
        saved.w = chainer.Parameter(values.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2))
        saved.gaps = chainer.Parameter(np.zeros((4, 3), "f")[::2])
        saved.none = chainer.Parameter(np.zeros(3, "f"))
    file = str(tmp_path / "file")
    getattr(serializers, f"save_{kind}")(file, saved)
    loaded = saved.copy("copy")
    for param in loaded.params():
        param.array = np.zeros((4, *param.shape[1:]), "f")[::2] if param is loaded.gaps else np.zeros_like(param.array)
    arrays = [param.array for param in loaded.params()]
    assert not loaded.w.array.flags.c_contiguous
    getattr(serializers, f"load_{kind}")(file, loaded)
    assert all(param.array is array for param, array in zip(loaded.params(), arrays, strict=True))
    np.testing.assert_array_equal(loaded.w.array, values)


def test_npz_loads_into_arrays_of_cupy_that_are_not_contiguous(monkeypatch):
    """With a stand-in that refuses what CuPy refuses in ``ndarray.set``."""

    class OfCupy:
        device = None  # none that there is here

        def __init__(self, array):
            self.array, self.flags, self.dtype = array, array.flags, array.dtype

        def copy(self, order):
            return OfCupy(self.array.copy(order))

        def set(self, array):
            if not self.flags.c_contiguous and not self.flags.f_contiguous:
                raise RuntimeError("Cannot set to non-contiguous array")
            self.array[...] = array

        def __setitem__(self, index, value):
            self.array[index] = value.array

    monkeypatch.setattr(chainer.serializers.npz.cuda, "ndarray", OfCupy)
    values = np.arange(24, dtype="f").reshape(2, 3, 2, 2)
    target = OfCupy(np.zeros((2, 2, 2, 3), "f").transpose(0, 3, 1, 2))
    assert serializers.NpzDeserializer({"w": values})("w", target) is target
    np.testing.assert_array_equal(target.array, values)


def test_msvag_goes_on_from_a_snapshot_with_its_bias_correction():
    def step(rule, param, times):
        for _ in range(times):
            param.grad = np.ones(2, "f")
            rule.update(param)

    def new():
        return chainer.optimizers.msvag.MSVAGRule(), chainer.Parameter(np.zeros(2, "f"))

    rule, param = new()
    step(rule, param, 3)
    saved = serializers.DictionarySerializer()
    rule.serialize(saved)
    for drop in ((), ("beta_power",)):  # with it, and without it as plain Chainer writes
        resumed, _ = new()
        resumed.serialize(serializers.NpzDeserializer({k: v for k, v in saved.target.items() if k not in drop}))
        assert resumed.beta_power == pytest.approx(rule.beta_power, rel=1e-15)
        assert resumed.beta_power != new()[0].beta_power


def test_multiprocess_iterator_starts_its_thread_without_a_warning():
    """Thread.setDaemon has been deprecated since Python 3.10; the thread still lets the process end."""
    iterator = chainer.iterators.MultiprocessIterator(list(range(4)), 2, shuffle=False, n_processes=1)
    try:
        assert [next(iterator), next(iterator)] == [[0, 1], [2, 3]]
        assert iterator._prefetch_loop._thread.daemon
    finally:
        iterator.finalize()

"""Chainer's link hooks on layers that get their shape in the first pass."""

import types

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import serializers
from chainer.link_hooks import SpectralNormalization, WeightStandardization

import mixprec
from tests.cases import first, pairs

X = np.random.RandomState(0).rand(2, 3, 6, 6).astype("f")
LAYERS = {
    "convolution": lambda: L.Convolution2D(None, 4, 3),
    "deconvolution": lambda: L.Deconvolution2D(None, 4, 3),
    "deconvolution_nd": lambda: L.DeconvolutionND(2, None, 4, 3),
    "linear": lambda: L.Linear(None, 4),
}
HOOKS = {
    "spectral": (SpectralNormalization,),
    "gamma": (lambda: SpectralNormalization(use_gamma=True),),
    "standardization": (WeightStandardization,),
    "both": (SpectralNormalization, WeightStandardization),
    "the other way round": (WeightStandardization, SpectralNormalization),
}


class Net(chainer.Chain):
    def __init__(self, layer, hooks):
        super().__init__()
        with self.init_scope():
            self.layer = LAYERS[layer]()
        for hook in HOOKS[hooks]:
            self.layer.add_hook(hook())

    def forward(self, x):
        return F.sum(self.layer(x) ** 2)


def _run(how, layer="convolution", hooks="spectral", seed=0):
    """Returns a model and its optimizer, before the first pass."""
    np.random.seed(seed)
    model = Net(layer, hooks)
    optimizer = chainer.optimizers.MomentumSGD(0.01)
    if how != "plain":
        optimizer = mixprec.MixedPrecisionOptimizer(optimizer, 16.0)
    optimizer.setup(model)
    if how == "converted":
        mixprec.convert(model)
    return model, optimizer


def _steps(model, optimizer):
    for _ in range(2):
        optimizer.update(model, X)


def _contents(model):
    target = {}
    serializers.DictionarySerializer(target).save(model)
    return target


def _assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize(
    ("layer", "hooks", "how"), first(5, pairs(list(LAYERS), list(HOOKS), ["plain", "wrapped", "converted"]), 8)
)
def test_a_resumed_run_is_the_uninterrupted_one(layer, hooks, how, tmp_path):
    kind = "hdf5" if layer == "linear" else "npz"
    if kind == "hdf5":
        pytest.importorskip("h5py", reason="h5py is not installed")
    save, load = getattr(serializers, f"save_{kind}"), getattr(serializers, f"load_{kind}")
    model, optimizer = _run(how, layer, hooks)
    _steps(model, optimizer)
    save(tmp_path / "model.npz", model)
    save(tmp_path / "optimizer.npz", optimizer)
    _steps(model, optimizer)
    resumed, its_optimizer = _run(how, layer, hooks, seed=1)
    load(tmp_path / "optimizer.npz", its_optimizer)
    load(tmp_path / "model.npz", resumed)
    _steps(resumed, its_optimizer)
    _assert_equal(_contents(resumed), _contents(model))


def test_the_step_after_a_file_takes_the_vector_back_if_it_is_skipped(tmp_path):
    model, optimizer = _run("wrapped")
    _steps(model, optimizer)
    serializers.save_npz(tmp_path / "model.npz", model)
    resumed, its_optimizer = _run("wrapped", seed=1)
    serializers.load_npz(tmp_path / "model.npz", resumed)
    its_optimizer.update(resumed, np.full_like(X, np.inf))
    assert its_optimizer.last_step_skipped
    np.testing.assert_array_equal(resumed.layer.W_u, model.layer.W_u)


def test_weights_of_a_network_without_the_hook_are_loaded(tmp_path):
    serializers.save_npz(tmp_path / "file.npz", chainer.Sequential(L.Convolution2D(3, 4, 3)))
    model = chainer.Sequential(L.Convolution2D(None, 4, 3).add_hook(SpectralNormalization()))
    serializers.load_npz(tmp_path / "file.npz", model)
    model(X)
    assert model[0].W_u.shape == (4,)


def test_a_layer_without_a_shape_and_its_copies_share_a_hook():
    """Chainer alone raises ``AttributeError: ... no attribute 'W_u'`` in the second one."""
    layers = L.Convolution2D(None, 3, 3, pad=1).add_hook(SpectralNormalization()).repeat(2)
    layers(X)
    assert layers[0].W_u is not layers[1].W_u


@pytest.mark.parametrize("n_batch_axes", [1, 2])
def test_a_linear_layer_gets_its_size_as_without_the_hook(n_batch_axes):
    layer = L.Linear(None, 4).add_hook(WeightStandardization())
    layer(X, n_batch_axes=n_batch_axes)
    assert layer.W.shape == (4, X[0].size if n_batch_axes == 1 else X[0, 0].size)


def test_gamma_in_float16_is_the_largest_singular_value():
    with chainer.using_config("dtype", np.dtype(np.float16)):
        layer = L.Linear(3, 4).add_hook(SpectralNormalization(use_gamma=True))
    largest = np.linalg.svd(layer.W.array.astype(np.float64), compute_uv=False)[0]
    assert layer.gamma.dtype == np.float16
    assert layer.gamma.array == np.float16(largest)


@pytest.mark.filterwarnings("ignore:.*MultiNodeBatchNormalization is experimental:FutureWarning")
def test_hooks_run_around_a_batch_normalization_of_ranks():
    """ChainerMN's link has a ``__call__`` of its own."""
    from chainermn.links import MultiNodeBatchNormalization

    calls = []

    class Notes(chainer.LinkHook):
        name = "notes"

        def forward_preprocess(self, args):
            calls.append(("before", args.link, args.args))

        def forward_postprocess(self, args):
            calls.append(("after", args.link, args.out))

    link = MultiNodeBatchNormalization(3, types.SimpleNamespace(size=1), communication_backend="mpi")
    with Notes(), chainer.using_config("train", False):
        y = link(X)
    assert calls == [("before", link, (X,)), ("after", link, y)]

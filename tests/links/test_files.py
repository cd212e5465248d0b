"""Files of these links are those of Chainer's: names, order of axes, float32."""

import chainer
import chainer.links as CL
import numpy as np
import pytest
from chainer import serializers

import mixprec
from mixprec import links as L
from tests.cases import pairs
from tests.functions.nhwc import DTYPES, normal, to_nchw

SHAPE = 2, 6, 6, 3


class Model(chainer.Chain):
    """The same structure from links of mixprec or of Chainer."""

    def __init__(self, links, lazy=False, **rest):
        super().__init__()
        lazily = (lambda *sizes: sizes[1:]) if lazy else (lambda *sizes: sizes)
        with self.init_scope():
            self.conv = links.Convolution2D(*lazily(3, 8), 3, pad=1, **rest)
            self.bn = (
                links.BatchNormalization(None if lazy else 8, axis=_axis(links))
                if lazy
                else links.BatchNormalization(8)
            )
            self.deconv = links.Deconvolution2D(*((None, 4) if lazy else (8, 4)), 2, stride=2, **rest)
            self.fc = links.Linear(*lazily(12 * 12 * 4, 5), **rest)

    def forward(self, x):
        return self.fc(self.deconv(self.bn(self.conv(x))))


def _axis(links):
    return (0, 2, 3) if links is CL else (0, 1, 2)


def _moved(model, dtype=np.float32):
    """A model whose running statistics are not those it began with."""
    x = normal(0, *SHAPE, dtype=dtype)
    model(to_nchw(x) if type(model.conv) is CL.Convolution2D else x)
    return model


def _values(model):
    values = {name: param.array.astype(np.float32) for name, param in model.namedparams()}
    return {**values, "mean": model.bn.avg_mean, "var": model.bn.avg_var, "N": model.bn.N}


def _assert_equal(found, expected, rounded_to=np.float32):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if name.split("/")[1:2] in (["conv"], ["deconv"], ["fc"]):
            value = value.astype(rounded_to).astype(np.float32)
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def _save_and_load(kind, path, source, target):
    if kind == "hdf5":
        pytest.importorskip("h5py", reason="h5py (extra test) is not installed")
    getattr(serializers, f"save_{kind}")(str(path), source)
    getattr(serializers, f"load_{kind}")(str(path), target)


every_way = pytest.mark.parametrize(("dtype", "kind", "lazy"), pairs(DTYPES, ["npz", "hdf5"], [False, True]))


@every_way
def test_a_file_of_chainer(tmp_path, kind, dtype, lazy):
    source, target = _moved(Model(CL)), Model(L, lazy, dtype=dtype)
    _save_and_load(kind, tmp_path / "file", source, target)
    _assert_equal(_values(target), _values(source), dtype)
    assert target.conv.W.dtype == target.deconv.W.dtype == target.fc.W.dtype == dtype
    for link in (target.conv, target.deconv):
        assert link.W.array.transpose(0, 2, 3, 1).flags.c_contiguous
    with chainer.using_config("train", False):
        x = normal(1, *SHAPE)
        y, exact = target(x.astype(dtype)).array, source(to_nchw(x)).array
    np.testing.assert_allclose(y.astype(np.float32), exact, atol=1e-4 if dtype == np.float32 else 0.2)


@every_way
def test_a_file_for_chainer(tmp_path, kind, dtype, lazy):
    source, target = _moved(Model(L, dtype=dtype), dtype), Model(CL, lazy)
    _save_and_load(kind, tmp_path / "file", source, target)
    _assert_equal(_values(target), _values(source))


def test_what_is_saved_is_float32_in_chainers_order():
    model = _moved(Model(L, dtype="bfloat16"), DTYPES[1])
    saved = serializers.npz.serialize(model)
    assert {array.dtype.name for name, array in saved.items() if name != "bn/N"} == {"float32"}
    assert saved["conv/W"].shape == (8, 3, 3, 3)
    assert model.conv.W.dtype == DTYPES[1]


@pytest.mark.parametrize("lazy", [False, True])
def test_what_a_file_lacks_stays_as_it_is(tmp_path, lazy):
    model = Model(L, lazy, dtype="float16")
    before = {name: None if p.array is None else p.array.copy() for name, p in model.namedparams()}
    saved = serializers.npz.serialize(_moved(Model(CL)))
    np.savez(tmp_path / "part.npz", **{name: array for name, array in saved.items() if not name.startswith("conv/")})
    with pytest.raises(KeyError):
        serializers.load_npz(tmp_path / "part.npz", model)
    serializers.load_npz(tmp_path / "part.npz", model, strict=False)
    assert (model.conv.W.array is None) == lazy
    if not lazy:
        np.testing.assert_array_equal(model.conv.W.array, before["/conv/W"])
    np.testing.assert_array_equal(model.fc.W.array, saved["fc/W"].astype(np.float16))


def test_files_of_other_dtypes_are_rounded(tmp_path):
    saved = {name: array.astype(np.float64) for name, array in serializers.npz.serialize(_moved(Model(CL))).items()}
    saved["bn/N"] = np.array(3)
    np.savez(tmp_path / "wide.npz", **saved)
    model = Model(L, lazy=True, dtype="float16")
    serializers.load_npz(tmp_path / "wide.npz", model)
    assert model.bn.avg_mean.dtype == model.bn.avg_var.dtype == model.bn.gamma.dtype == np.float32
    assert model.bn.N == 3
    assert model(normal(0, *SHAPE, dtype=np.float16)).dtype == np.float16


@pytest.mark.parametrize(("dtype", "kind", "lazy"), pairs(DTYPES[:2], ["npz", "hdf5"], [False, True]))
def test_masters_are_saved_and_loaded_where_there_are_some(tmp_path, kind, dtype, lazy):
    """A wrapped model keeps bits of float32 that its parameters do not show."""
    chainers = _moved(Model(CL))
    model = Model(L, lazy, dtype=dtype)
    mixprec.MixedPrecisionOptimizer(chainer.optimizers.SGD()).setup(model)
    _save_and_load(kind, tmp_path / "file", chainers, model)
    back = Model(CL)
    _save_and_load(kind, tmp_path / "back", model, back)
    _assert_equal(_values(back), _values(chainers))
    for name, param in model.namedparams():
        assert param.dtype == (np.float32 if name.startswith("/bn/") else dtype)

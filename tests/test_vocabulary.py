"""One vocabulary for dtypes, layouts and devices: the same words in configs, commands and Python."""

import chainer
import chainer.links as L
import numpy as np
import pytest

import mixprec
from mixprec.app.parts import gpus
from mixprec.base import arguments, vocabulary
from mixprec.links import Linear

DTYPES = {
    "float16": ("fp16", "half", "FP16", "Half", "float16"),
    "bfloat16": ("bf16", "BF16", "bfloat16"),
    "float32": ("fp32", "single", "float32"),
}
LAYOUTS = {"nhwc": ("nhwc", "NHWC", "channels_last"), "nchw": ("nchw", "NCHW", "channels_first", "contiguous")}
DEVICES = {
    "auto": ("auto", "AUTO"),
    "cpu": ("cpu", "CPU", "@numpy", "numpy"),
    "gpu": ("gpu", "GPU", "cuda", "@cupy", "cupy"),
    "gpu:0": ("gpu:0", "gpu:00", "cuda:0", "CUDA:0", "@cupy:0", "cupy:0"),
    "gpu:12": ("gpu:12", "cuda:12", "@cupy:12"),
}


def _pairs(words):
    return [(word, meant) for meant, each in words.items() for word in each]


@pytest.mark.parametrize(("word", "meant"), _pairs(DTYPES))
def test_a_dtype_has_the_same_names_in_all_of_python(word, meant):
    assert arguments.storage_dtype("dtype", word).name == meant
    assert Linear(3, 4, dtype=word).W.dtype == arguments.storage_dtype("dtype", meant)
    assert {param.dtype.name for param in _converted(compute=word).params()} == {meant}


@pytest.mark.parametrize(("word", "meant"), _pairs(LAYOUTS))
def test_a_layout_has_the_same_names_in_python(word, meant):
    assert str(_report(layout=word)) == str(_report(layout=meant))


@pytest.mark.parametrize(("word", "meant"), _pairs(DEVICES))
def test_a_device_has_the_names_of_chainer_and_pytorch(word, meant):
    assert vocabulary.device(word) == meant


@pytest.mark.parametrize("word", ["tpu", "gpu:", "gpu:x", "@numpy:0", "cuda:0:1", 0, None])
def test_another_device_is_left_to_the_check(word):
    assert vocabulary.device(word) is word


@pytest.mark.parametrize("word", DEVICES["cpu"])
def test_the_cpu_is_found_by_each_name(word):
    assert gpus.resolve_device(word)[0] == "@numpy"


@pytest.mark.parametrize(("word", "near"), [("half_", "half"), ("fp_16", "fp16"), ("bfloat", "bfloat16")])
def test_a_misspelled_dtype_is_answered_with_the_nearest_word(word, near):
    with pytest.raises(ValueError, match=f"found '{word}'; did you mean '{near}'\\?$"):
        arguments.storage_dtype("dtype", word)


def _net():
    return chainer.Sequential(L.Convolution2D(3, 4, 3, nobias=True))


def _converted(**how):
    model = _net()
    mixprec.convert(model, **how)
    return model


def _report(**how):
    return mixprec.convert(_net(), np.zeros((1, 3, 5, 5), np.float32), **how)

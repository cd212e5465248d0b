"""The words for dtypes, memory layouts and devices, and their names elsewhere: for configs, commands and Python.

NumPy is not imported, as configs are read without it.
"""

import re

DTYPES = ("float16", "bfloat16", "float32")
DTYPE_SYNONYMS = {"fp16": "float16", "half": "float16", "bf16": "bfloat16", "fp32": "float32", "single": "float32"}

LAYOUTS = ("nhwc", "nchw")
LAYOUT_SYNONYMS = {"channels_last": "nhwc", "channels_first": "nchw", "contiguous": "nchw"}

_CPU = ("@numpy", "numpy")
_GPU = re.compile(r"(?:gpu|cuda|@?cupy)(?::0*(\d+))?")


def meant(value, words, synonyms):
    """Returns the word that a value is, or is a synonym of, in upper or lower case; any other value unchanged.

    Example:
        >>> meant("FP16", DTYPES, DTYPE_SYNONYMS)
        'float16'
    """
    if not isinstance(value, str):
        return value
    word = value.lower()
    return word if word in words else synonyms.get(word, value)


def device(value):
    """Returns ``auto``, ``cpu``, ``gpu`` or ``gpu:N`` for a device, named as here, by Chainer or by PyTorch.

    Any other value is returned unchanged.

    Example:
        >>> device("@numpy"), device("@cupy:1"), device("cuda:0")
        ('cpu', 'gpu:1', 'gpu:0')
    """
    word = value.lower() if isinstance(value, str) else ""
    gpu = _GPU.fullmatch(word)
    if gpu:
        return "gpu" if gpu[1] is None else f"gpu:{gpu[1]}"
    return "cpu" if word in _CPU else meant(value, ("auto", "cpu"), {})

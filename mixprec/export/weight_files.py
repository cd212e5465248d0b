"""Files of weights: Chainer's .npz, and PyTorch's .safetensors and .pt. Nothing in them is ever executed.

The commands ``mixprec train`` and ``mixprec weights`` read and write them.
"""

import importlib
import io
import os
import pickle
import warnings

import numpy as np

from mixprec.base import files
from mixprec.base.archives import Damaged, read_arrays, reading
from mixprec.base.dtypes import BFLOAT16
from mixprec.base.installation import install_hint
from mixprec.base.messages import beside, encoding_hint
from mixprec.export.export_error import WeightsError
from mixprec.export.matching import contents, file_names, load
from mixprec.export.state_dicts import network_of, torchvision, unwrapped

SUFFIXES = (".npz", ".safetensors", ".pt", ".pth")
# Prefixes of the network in a snapshot of a training run: its weights, and their average, which validation uses.
_SNAPSHOT = "updater/model:main/predictor/", "extensions/average/average/predictor/"
_TORCH_SIZE = " (200 MB, or gigabytes with CUDA)"
_STORED = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": BFLOAT16, "I64": np.int64, "I32": np.int32}


class WeightFile:
    """The weights of a file.

    Args:
        path: path of the file; its suffix determines its kind.

    Attributes:
        path: path of the file.
        torch (bool): whether names are PyTorch's.
        state: dict of arrays or tensors by name.

    Raises:
        WeightsError: there is no such file, it is damaged or holds something else, or the package to read it is
            missing.
    """

    def __init__(self, path):
        self.path, self.torch = path, is_torchs(path)
        read = {".npz": _read_npz, ".safetensors": _read_safetensors}.get(_suffix(path), _read_pt)
        try:
            with files.open_regular(path) as file:
                self.state = unwrapped(read(file))
        except FileNotFoundError as error:
            raise WeightsError(f"{path}: no such file{beside(path)}") from error
        except OSError as error:
            raise WeightsError(f"{path}: {error.strerror or error}") from error
        except WeightsError as error:
            raise WeightsError(f"{path}: {error}") from error

    def load_into(self, network, classes=None):
        """Loads the weights into a network; see :func:`mixprec.export.matching.load`.

        Raises:
            WeightsError: they belong to another network.
        """
        try:
            return load(network, self.state, file_names(network, torch=self.torch), classes)
        except WeightsError as error:
            raise WeightsError(f"{self.path}: {error}") from error


def is_torchs(path):
    """Whether the names in a file are PyTorch's, by its suffix.

    Raises:
        WeightsError: the suffix is another, or the path is not a file name.
    """
    try:
        is_name = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        is_name = False
    if not is_name:
        raise WeightsError(f"{path}: cannot be the name of a file{encoding_hint(path)}")
    if _suffix(path) not in SUFFIXES:
        raise WeightsError(f"{path}: the suffix determines the format of weights; allowed: {', '.join(SUFFIXES)}")
    return _suffix(path) != ".npz"


def write(path, network):
    """Writes the weights of a network, as a complete file or not at all.

    Args:
        path: path of the file; its suffix determines its kind.
        network: as for :func:`mixprec.export.torchvision`.

    Raises:
        WeightsError: the file cannot be written, or the package to write it is missing.
    """
    is_torchs(path)
    write_kind = {".npz": _write_npz, ".safetensors": _write_safetensors}.get(_suffix(path), _write_pt)
    try:
        with files.replacing(path) as temporary, open(temporary, "wb") as file:
            write_kind(file, network_of(network))
    except OSError as error:
        raise WeightsError(f"{path}: cannot be written ({error.strerror or error})") from error
    except WeightsError as error:
        raise WeightsError(f"{path}: {error}") from error


def _suffix(path):
    return os.path.splitext(path)[1].lower()


def _read_npz(file):
    try:
        arrays = read_arrays(file, _of_network, _objects)
    except Damaged as error:
        raise WeightsError(f"damaged, or not an .npz file ({error})") from error
    named = ((prefix, name) for prefix in _SNAPSHOT for name in arrays if name.startswith(prefix))
    of_network = {name.removeprefix(prefix): arrays[name] for prefix, name in named}
    return of_network or arrays


def _of_network(names):
    return [name for name in names if name.startswith(_SNAPSHOT)] or names


def _objects(name, shape):
    raise WeightsError(f"{name} holds Python objects, which are not read; wanted: arrays of numbers")


def _write_npz(file, network):
    np.savez(file, **contents(network))


def _read_safetensors(file):
    safetensors = _package("safetensors", "export")
    try:
        with reading():
            tensors = safetensors.deserialize(file.read())
            return {name: _array(name, tensor) for name, tensor in tensors}
    except Damaged as error:
        raise WeightsError(f"damaged, or not a .safetensors file ({error})") from error


def _array(name, tensor):
    if tensor["dtype"] not in _STORED:
        raise WeightsError(f"{name} is {tensor['dtype']}; wanted: one of {', '.join(_STORED)}")
    return np.frombuffer(tensor["data"], _STORED[tensor["dtype"]]).reshape(tensor["shape"])


def _write_safetensors(file, network):
    _package("safetensors", "export")
    from safetensors.numpy import save

    file.write(save(torchvision(network), {"format": "pt"}))  # which other programs expect


def _read_pt(file):
    torch = _package("torch", "torch", f"{_TORCH_SIZE}; or save it as .safetensors where torch is")
    try:
        with reading(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a TorchScript archive, which is refused
            return torch.load(io.BytesIO(file.read()), map_location="cpu", weights_only=True)
    except Damaged as error:
        if isinstance(error.__cause__, pickle.UnpicklingError):
            wanted = "wanted: a file of torch.save(module.state_dict(), FILE)"
            raise WeightsError(f"damaged, or holds more than tensors, which is not read; {wanted}") from error
        raise WeightsError(f"damaged, or not a file of torch.save ({error})") from error


def _write_pt(file, network):
    torch = _package("torch", "torch", f"{_TORCH_SIZE}; or write .safetensors, which PyTorch's users load as well")
    content = io.BytesIO()  # so that an error of the disk is an exception of Python
    torch.save({name: torch.from_numpy(array) for name, array in torchvision(network).items()}, content)
    file.write(content.getbuffer())


def _package(name, extra, instead=""):
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise WeightsError(f"needs the package {name}: {install_hint(extra)}{instead}") from error

"""State dicts: weights of a Chainer model under PyTorch's names, and back."""

import chainer.links as L
import numpy as np

from mixprec.export.export_error import WeightsError
from mixprec.export.matching import contents, file_names, load
from mixprec.export.torch_names import COUNT, torch_names

_NESTED = ("state_dict", "model_state_dict", "model")  # where checkpoints of training scripts keep their state dict
_WRAPPERS = ("module.", "_orig_mod.", "predictor/")  # DistributedDataParallel, torch.compile, chainer.links.Classifier


def torchvision(model):
    """Returns the weights of a model as a state dict for PyTorch.

    A network of ``models/resnet.py`` gets torchvision's names and shapes. Any other network gets the names of a module
    with the same children. ``module.load_state_dict({name: torch.from_numpy(a) for name, a in state.items()})`` loads
    them.

    Args:
        model: ``chainer.Link``, plain or converted, on any device; for a ``chainer.links.Classifier``, its predictor is
            used. An FP16 or BF16 parameter is widened; if an optimizer holds its FP32 master, the master is taken.

    Returns:
        dict: copies as arrays of NumPy, by name: float32, and int64 for ``num_batches_tracked``.

    Raises:
        WeightsError: a parameter is not initialized, or PyTorch's layers do not have it.

    Example:
        >>> import chainer.links as L
        >>> state = torchvision(L.BatchNormalization(4))
        >>> sorted(state)
        ['bias', 'num_batches_tracked', 'running_mean', 'running_var', 'weight']
        >>> load_torchvision(L.BatchNormalization(4), state)
    """
    network = network_of(model)
    here = contents(network)
    return {other: _exported(name, here[name]) for name, other in torch_names(network, here).items()}


def load_torchvision(model, state):
    """Loads a state dict of PyTorch into a model.

    Args:
        model: as in :func:`torchvision`; masters get the values without rounding.
        state: dict from names to arrays of NumPy, or to tensors of PyTorch, in any floating dtype; they become FP32. It
            may be nested in another dict under ``state_dict``, ``model_state_dict`` or ``model``, and all its names may
            begin with ``module.`` or ``_orig_mod.``. ``num_batches_tracked`` may be missing.

    Raises:
        WeightsError: a name is unknown or missing, or a shape differs. The model is then unchanged.

    Example:
        >>> import chainer.links as L, numpy as np
        >>> from mixprec import export
        >>> model = L.Linear(4, 2)
        >>> state = {"weight": np.ones((2, 4), np.float32), "bias": np.zeros(2, np.float32)}  # as of torch.load
        >>> export.load_torchvision(model, state)
        >>> float(model.W.array.sum())
        8.0
    """
    network = network_of(model)
    load(network, unwrapped(state), file_names(network, torch=True))


def network_of(model):
    """Returns the network in a classifier, otherwise the model itself."""
    return model.predictor if isinstance(model, L.Classifier) else model


def unwrapped(state):
    """Returns the state dict in a checkpoint, without the prefixes of wrappers.

    Raises:
        WeightsError: there is none.
    """
    for name in _NESTED:
        if isinstance(state, dict) and isinstance(state.get(name), dict):
            state = state[name]
    if not isinstance(state, dict) or not state or not all(isinstance(name, str) for name in state):
        raise WeightsError("has no tensors by name")
    for wrapper in _WRAPPERS:
        if all(name.startswith(wrapper) for name in state):
            state = {name.removeprefix(wrapper): value for name, value in state.items()}
    return state


def _exported(name, array):
    if array.dtype == object:
        raise WeightsError(f"{name} is not initialized; call the model on some input first")
    return np.array(array, np.int64 if name.rpartition("/")[2] == COUNT else np.float32)

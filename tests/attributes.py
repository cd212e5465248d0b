"""All attributes of Chainer's modules, classes and functions, to be compared before and after mixprec changes some."""

import contextlib
import importlib
import pkgutil
import sys
import types
import warnings

PACKAGES = ("chainer", "chainermn")
_OF_PYTHON = ("__warningregistry__", "__wrapped__", "__slotnames__")
_NEED_MORE = ("caffe", "onnx", "chainer.testing")  # a protobuf, or a pkg_resources, that may not be there


def import_everything():
    """Imports all modules of Chainer and ChainerMN that can be imported here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for package in PACKAGES:
            folders = importlib.import_module(package).__path__
            for _, name, _ in pkgutil.walk_packages(folders, package + ".", onerror=lambda name: None):
                if not any(word in name for word in _NEED_MORE):
                    with contextlib.suppress(Exception):  # of a library that is not installed, or too new
                        importlib.import_module(name)


def snapshot():
    """Returns ``{(module, path): value}`` of everything in Chainer, and of NumPy's own namespace."""
    found = {}
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] in PACKAGES and isinstance(module, types.ModuleType):
            found["sys.modules", module_name] = module
            for name, value in vars(module).items():
                found[module_name, name] = value
                if isinstance(value, (type, types.FunctionType)) and value.__module__ == module_name:
                    found.update(
                        {(module_name, f"{value.__qualname__}.{key}"): each for key, each in vars(value).items()}
                    )
    found.update({("numpy", name): value for name, value in vars(sys.modules["numpy"]).items()})
    return {key: value for key, value in found.items() if not key[1].endswith(_OF_PYTHON)}


def differences(before, after):
    """Returns the keys whose values are not the same objects, without modules that were imported meanwhile."""
    keys = {key for key in before.keys() | after.keys() if before.get(key) is not after.get(key)}
    inside = {key for key in keys if (key[0], key[1].partition(".")[0]) in keys and "." in key[1]}
    imported = {key for key in keys - before.keys() if isinstance(after[key], types.ModuleType)}
    return keys - inside - imported


def keys_of(replaced, after):
    """Returns where attributes are replaced, with other modules that have them by ``from ... import``.

    Args:
        replaced: of :func:`mixprec.compat.registry.replaced`, or a part of it.
        after: :func:`snapshot` of the same time.
    """
    keys = set()
    for owner, name in replaced:
        if owner is None:
            keys |= {("sys.modules", name), tuple(name.rsplit(".", 1))}
        elif isinstance(owner, types.ModuleType):
            value = vars(owner)[name]
            shared = value is None or isinstance(value, (bool, int, str))  # with names that have nothing to do with it
            keys |= set() if shared else {key for key, other in after.items() if other is value}
            keys.add((owner.__name__, name))
        else:
            keys.add((owner.__module__, f"{owner.__qualname__}.{name}"))
    return keys

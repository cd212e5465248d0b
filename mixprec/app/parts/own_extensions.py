"""The user's own extensions that ``log.extensions`` names: metrics, or reports to other programs."""

import contextlib
import inspect

from chainer.training import Extension, triggers

from mixprec.app.config import ConfigError
from mixprec.app.config.config_error import shown
from mixprec.app.parts import user_code

_WANTED = "wanted: a chainer.training.Extension, its class, or a function that is called with the trainer"


def find(settings):
    """Returns the extensions of a config, a list of pairs: import path, and extension.

    Args:
        settings: :class:`mixprec.app.config.run.Log`.

    Raises:
        ConfigError: there is none at a path, its class raises an exception, or it is not an extension.
    """
    return [(path, _made(_named(path), path)) for path in settings.extensions]


def _made(named, path):
    found = user_code.load(named, path)
    if inspect.isclass(found):
        found = user_code.call(named, "called without arguments", found)
    if not callable(found) or type(found).__call__ is Extension.__call__:
        raise ConfigError(named, f"found {type(found).__name__}, which cannot be called with the trainer; {_WANTED}")
    user_code.check_call(named, found, "the trainer", None)
    return found


def extend(trainer, extensions):
    """Adds extensions to a trainer, after all others.

    Args:
        trainer: :class:`chainer.training.Trainer`.
        extensions: from :func:`find`.

    Raises:
        ConfigError: an extension has the name of an earlier one, or its trigger is invalid.
    """
    for path, extension in extensions:
        name = _name(extension)
        if name in trainer._extensions:
            raise ConfigError(_named(path), f"the run already has an extension named {name!r}; give it another name")
        user_code.call(_named(path), "added to the trainer", trainer.extend, extension, name=name)


@contextlib.contextmanager
def as_saved(trainer, extensions, arrays):
    """A context in which a trainer lacks the extensions that are not in a snapshot: they start afresh.

    Args:
        trainer: :class:`chainer.training.Trainer`.
        extensions: extensions that :func:`extend` has added.
        arrays: arrays of the snapshot, by name.
    """
    entries = trainer._extensions
    before = entries.copy()
    for _, extension in extensions:
        name = _name(extension)
        if not any(array.startswith((f"extensions/{name}/", f"extension_triggers/{name}/")) for array in arrays):
            del entries[name]
    added = [before[name] for name in before.keys() - entries.keys()]
    try:
        yield
        for entry in added:
            if isinstance(entry.trigger, triggers.IntervalTrigger):
                entry.trigger(trainer)  # counts from now on; Chainer's count from 0 would fire at once
    finally:
        entries.clear()
        entries.update(before)  # in the order from before, in which extensions of one priority are called


def _name(extension):
    """The name that Chainer's trainer gives it; an object without a name gets its class's."""
    names = (getattr(extension, key, None) for key in ("name", "default_name", "__name__"))
    return next(filter(None, names), type(extension).__name__)


def _named(path):
    return f"'log.extensions' has {shown(path)}"

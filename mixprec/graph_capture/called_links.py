"""The links that captured work calls: its model's links with their hooks, and other links."""

import contextlib
import functools
import itertools
import operator
import threading

import chainer

from mixprec.base.scoped import scoped
from mixprec.compat.registry import patch

_KNOWN_HOOKS = ("SpectralNormalization", "WeightStandardization")  # they work on the device, so the graph includes them
_HOOKS = operator.attrgetter("_local_link_hooks")  # None if the link never had one


def array_of(model):
    """Returns the array of some parameter of a model, or an empty array on its device if none is initialized."""
    for param in model.params(include_uninit=False):
        return param.array
    with chainer.using_device(model.device):
        return model.xp.empty(0)


def hook_left_out(model):
    """Returns a sentence about the first link hook that would not run in a graph, or ``None``."""
    for name, link in model.namedlinks():
        for hook in link.local_link_hooks.values():
            if not type(hook).__module__.startswith("mixprec.") and type(hook).__name__ not in _KNOWN_HOOKS:
                return f"a graph would leave out the hook {type(hook).__name__} of {name}"
    return None


def local_hooks(links):
    """Returns a list of the hooks that were added to these links themselves."""
    return list(itertools.chain.from_iterable(map(dict.values, filter(None, map(_HOOKS, links)))))


@contextlib.contextmanager
def called():
    """A context that yields a dict of the links that are called inside of it, by their ids."""
    with scoped(_calls, found={}), _collecting.applied():
        yield _calls.found


class _Calls(threading.local):
    found = None  # the dict of the innermost context


_calls = _Calls()


@patch("chainer.link:Link.__call__", when="mixprec.capture")
def _collecting(original):
    """Without it capture does not find links that a step calls beside its model. Only while two steps are watched."""

    @functools.wraps(original)
    def call(self, *args, **kwargs):
        if _calls.found is not None:
            _calls.found[id(self)] = self
        return original(self, *args, **kwargs)

    return call


def are_same(objects, others):
    """Whether two lists have the same objects, in the same order."""
    return len(objects) == len(others) and all(map(operator.is_, objects, others))


class OtherLinks:
    """Links outside of the model that a step calls, such as the generator in a discriminator's step.

    A step may change their running statistics, and the user may replace their arrays.

    Args:
        links: dict from :func:`called`.
        model: the model of the step.
    """

    def __init__(self, links, model):
        own = set(map(id, model.links()))
        self._links = [link for key, link in links.items() if key not in own]
        self._held = self._objects()

    def named(self):
        """Returns a dict of these links by names for messages."""
        return {f"another link, {type(link).__name__} {number}": link for number, link in enumerate(self._links)}

    def state(self):
        """Returns a dict of their persistent arrays, which a step may change in place, by names for messages."""
        return {
            f"{name} of {path}": value
            for path, link in self.named().items()
            for name in sorted(link._persistent)
            if isinstance(value := link.__dict__.get(name), chainer.get_array_types())
        }

    def hold(self):
        """Whether they still have their original arrays."""
        return not self._links or are_same(self._objects(), self._held)

    def _objects(self):
        arrays = [param.array for link in self._links for param in link.params()]
        return [*arrays, *self.state().values()]

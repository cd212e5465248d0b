"""The links of a step: those of its model, and others that it calls."""

import contextlib
import functools
import operator

import chainer

_KNOWN_HOOKS = ("SpectralNormalization", "WeightStandardization")


def array_of(model):
    """Returns the array of a parameter of a model, or an empty one on its device if there is none yet."""
    for param in model.params(include_uninit=False):
        return param.array
    with chainer.using_device(model.device):
        return model.xp.empty(0)


def left_out(model):
    """Returns which hook of a link a graph would leave out, as text, or ``None``."""
    for name, link in model.namedlinks():
        for hook in link.local_link_hooks.values():
            if not type(hook).__module__.startswith("mixprec.") and type(hook).__name__ not in _KNOWN_HOOKS:
                return f"a graph would leave out the hook {type(hook).__name__} of {name}"
    return None


@contextlib.contextmanager
def called():
    """Collects links that are called inside of the block, in the dict that it gives, by their ids."""
    found = {}
    original = chainer.Link.__call__

    @functools.wraps(original)
    def call(self, *args, **kwargs):
        found[id(self)] = self
        return original(self, *args, **kwargs)

    chainer.Link.__call__ = call
    try:
        yield found
    finally:
        chainer.Link.__call__ = original


class OtherLinks:
    """Links that a step calls and that do not belong to its model, such as the generator where a discriminator learns.

    Nobody counts on them: they may move running statistics, and may go to another device.

    Args:
        links: dict from :func:`called`.
        model: the model of the step.
    """

    def __init__(self, links, model):
        own = set(map(id, model.links()))
        self._links = [link for key, link in links.items() if key not in own]
        self._held = self._objects()

    def state(self):
        """Returns their persistent arrays, which a step may move in place, by a name for messages."""
        return {
            f"{name} of another link, {type(link).__name__} {number}": value
            for number, link in enumerate(self._links)
            for name in sorted(link._persistent)
            if isinstance(value := link.__dict__.get(name), chainer.get_array_types())
        }

    def hold(self):
        """Whether they still have the arrays that they had in the beginning."""
        if not self._links:
            return True
        now = self._objects()
        return len(now) == len(self._held) and all(map(operator.is_, now, self._held))

    def _objects(self):
        arrays = [param.array for link in self._links for param in link.params()]
        return [*arrays, *self.state().values()]

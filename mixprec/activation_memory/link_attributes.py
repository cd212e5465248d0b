"""Attributes of links that a call changes, such as the state of an LSTM: a second call is to begin as the first did.

Lists and dicts among the attributes belong to it. Parameters and persistent values do not: they stay what they are.
"""

import contextlib
import functools

import chainer
import chainer.links as L

from mixprec.compat.wrapped import behind

_MISSING = object()
_BOOKKEEPING = {"_params", "_persistent", "_children", "_local_link_hooks", "_within_init_scope", "_device"}
# What batch renormalization leaves for a second call, if it knows that there will be one.
_FOR_LATER = "_prev_avg_"
# These know chainer.config.in_recomputing, and leave their running statistics alone.
_KNOWING = (L.BatchNormalization, L.DecorrelatedBatchNormalization)


def links_of(function, args):
    """Returns the links that a function holds, or gets as arguments, and all below them."""
    if isinstance(function, chainer.Link):
        found = [function]
    else:
        owner = getattr(function, "__self__", None)
        found = [each for each in (owner, *args, *behind(function)) if isinstance(each, chainer.Link)]
    return list({id(link): link for each in found for link in each.links()}.values())


class LinkAttributes:
    """What a call changes in attributes of links.

    Args:
        links: list of links, before the call.

    Attributes:
        changed: after :meth:`compare`, ``[(a dict or list, {key: value before}, {key: value after})]``.
    """

    def __init__(self, links):
        self._links = links
        self._before = [(holder, _items(holder)) for holder in _holders(links)]
        self.changed = []

    def compare(self):
        """Notes what is different now."""
        for holder, before in self._before:
            after = _items(holder)
            keys = [key for key in {**before, **after} if before.get(key, _MISSING) is not after.get(key, _MISSING)]
            if keys:
                keys = {**before, **after} if type(holder) is list else keys  # a list is put back as a whole
                self.changed.append((holder, _chosen(before, keys), _chosen(after, keys)))
        self._before = None

    def forget_results(self):
        """Lets go of the values from after the call, but for those that another call needs."""
        for _, _, after in self.changed:
            for key in list(after):
                if not _is_for_later(key):
                    del after[key]

    @contextlib.contextmanager
    def as_before(self):
        """Inside of the block attributes are as before the first call; after it as they are now."""
        now = [(holder, _now(holder, before)) for holder, before, _ in self.changed]
        statistics = [(vars(link), name, value, _copy(value)) for link, name, value in _statistics(self._links)]
        for holder, before, after in self.changed:
            _put(holder, {key: after.get(key, value) for key, value in before.items()})
        try:
            yield
        finally:
            for holder, values in now:
                _put(holder, values)
            for values, name, value, content in statistics:
                if content is not None:
                    value[...] = content
                values[name] = value


def _holders(links):
    for link in links:
        values = vars(link)
        yield values
        for name, value in values.items():
            if type(value) in (list, dict) and name[0] != "_":
                yield value


def _items(holder):
    if type(holder) is list:
        return dict(enumerate(holder))
    if "_params" not in holder:
        return dict(holder)
    lasting = _lasting(frozenset(holder["_params"]), frozenset(holder["_persistent"]))
    return {key: value for key, value in holder.items() if key not in lasting}


@functools.lru_cache(maxsize=1024)
def _lasting(params, persistent):
    return params | persistent | _BOOKKEEPING


def _now(holder, keys):
    return _items(holder) if type(holder) is list else _chosen(_items(holder), keys)


def _chosen(items, keys):
    return {key: items.get(key, _MISSING) for key in keys}


def _put(holder, values):
    if type(holder) is list:
        holder[:] = [values[key] for key in sorted(values) if values[key] is not _MISSING]
        return
    for key, value in values.items():
        if value is _MISSING:
            holder.pop(key, None)
        else:
            holder[key] = value


def _is_for_later(key):
    return isinstance(key, str) and key.startswith(_FOR_LATER)


def _statistics(links):
    for link in links:
        if link._persistent and not isinstance(link, _KNOWING):
            yield from ((link, name, vars(link)[name]) for name in link._persistent if name in vars(link))


def _copy(value):
    return value.copy() if isinstance(value, chainer.get_array_types()) else None

"""Link attributes that a call changes, such as the state of an LSTM: a second call must start like the first.

The contents of lists, dicts and arrays among the attributes are included. Parameters are not, nor objects that the call
has added to a model: they are not changed back.
"""

import collections
import contextlib
import copy
import dataclasses
import random
import threading
from typing import Any

import chainer
import chainer.links as L
import numpy as np

from mixprec.base.scoped import scoped
from mixprec.compat.wrapped import behind
from mixprec.links import BatchNormalization

_MISSING = object()
_BOOKKEEPING = {"_params", "_persistent", "_children", "_local_link_hooks", "_within_init_scope", "_device"}
_OWN = "_mixprec_"  # prefix of the attributes that mixprec gives to links
# Attributes that batch renormalization sets for a second call, if it expects one.
_FOR_LATER = "_prev_avg_"
# These respect chainer.config.in_recomputing, and do not change their running statistics then. Also for subclasses.
_KNOWING = (L.BatchNormalization, L.BatchRenormalization, L.DecorrelatedBatchNormalization, BatchNormalization)
_CONTAINERS = (list, dict, collections.deque)
_GENERATORS = (random.Random, np.random.RandomState, np.random.Generator)
_CHANGED_IN_PLACE = (*chainer.get_array_types(), *_GENERATORS)


class _Now(threading.local):
    """Attribute ``open``: tuple of the :class:`LinkAttributes` that record the links that this thread calls."""

    open = ()


_now = _Now()


def links_of(function, args, kwargs):
    """Returns the links that a function holds, or gets as arguments, and all their descendants."""
    if isinstance(function, chainer.Link):
        found = [function]
    else:
        owner = getattr(function, "__self__", None)
        values = (owner, *args, *kwargs.values(), *behind(function))
        found = [each for each in values if isinstance(each, chainer.Link)]
    return list({id(link): link for each in found for link in each.links()}.values())


def see(link):
    """Called before each call of a link, as its attributes may change."""
    for attributes in _now.open:
        attributes.add(link)


def seeing(*attributes):
    """A context in which :func:`see` adds links to these :class:`LinkAttributes`; without arguments, to none.

    The :class:`LinkAttributes` of outer contexts also get these links.
    """
    return scoped(_now, open=(*_now.open, *attributes) if attributes else ())


@dataclasses.dataclass(frozen=True)
class Change:
    """The changes of a call in a dict, a list or a deque.

    Attributes:
        holder: the dict, list or deque; for a link, its ``__dict__``.
        before: ``{key: value}`` from before the call. For a link only the changed items, otherwise all.
        after: ``{key: value}`` from after the call.
        is_of_a_link: whether the holder is the ``__dict__`` of a link.
    """

    holder: Any
    before: dict
    after: dict
    is_of_a_link: bool

    def get(self, key):
        """Returns the current value of a key, or ``None``."""
        return _items(self.holder).get(key)

    def now(self):
        """Returns the current items, for :meth:`put`."""
        items = _items(self.holder)
        return {key: items.get(key, _MISSING) for key in self.before} if self.is_of_a_link else items

    def put(self, items):
        """Puts items back."""
        if self.is_of_a_link:
            for key in items:
                self.holder.pop(key, None)
        else:
            self.holder.clear()
        items = {key: value for key, value in items.items() if value is not _MISSING}
        if isinstance(self.holder, dict):
            self.holder.update(items)
        else:
            self.holder.extend(items.values())


class LinkAttributes:
    """Records the changes of a call to attributes of links.

    Args:
        links: list of links, before the call.

    Attributes:
        changed: after :meth:`compare`, list of :class:`Change`.
    """

    def __init__(self, links):
        self._seen = {}  # {id: a link, or an object that a link holds}
        self._before = []
        self.changed = []
        for link in links:
            self.add(link)

    def add(self, link):
        """Records the current attributes of a link, unless they are recorded already."""
        todo = [link]
        while todo:
            holder = todo.pop()
            if id(holder) not in self._seen:
                self._seen[id(holder)] = holder
                items = _items_of_a_link(holder) if holder is link else _items(holder)
                copies = {key: _copy(value) for key, value in items.items() if isinstance(value, _CHANGED_IN_PLACE)}
                self._before.append((holder, items, copies))
                todo += [value for value in items.values() if isinstance(value, _CONTAINERS)]

    def compare(self):
        """Records the differences to the current attributes."""
        for holder, before, copies in self._before:
            is_of_a_link = isinstance(holder, chainer.Link)
            after = _items_of_a_link(holder) if is_of_a_link else _items(holder)
            keys = [key for key in {**before, **after} if before.get(key, _MISSING) is not after.get(key, _MISSING)]
            keys += [key for key, value in copies.items() if key not in keys and not _is_same(value, before[key])]
            before = {**before, **copies}
            if is_of_a_link:
                stays = _staying(holder) | (holder._persistent - before.keys())
                keys = [key for key in keys if key not in stays]
                before, after = ({key: items.get(key, _MISSING) for key in keys} for items in (before, after))
            if keys:
                self.changed.append(Change(vars(holder) if is_of_a_link else holder, before, after, is_of_a_link))
        self._before = self._seen = None

    def forget_results(self, nodes):
        """Drops objects that another call does not need.

        These are values from after the call, and graphs behind values from before it, which extend into other calls.

        Args:
            nodes: variable nodes that receive gradients: their graphs are needed.
        """
        nodes = set(nodes)
        for change in self.changed:
            for key in [key for key in change.after if not _is_for_later(key)]:
                del change.after[key]
            for key, value in change.before.items():
                if isinstance(value, chainer.Variable) and value.creator_node is not None and value.node not in nodes:
                    change.before[key] = chainer.Variable(value.array, name=value.name, requires_grad=False)

    @contextlib.contextmanager
    def as_before(self):
        """A context in which attributes are as before the first call; afterwards they are as they are now."""
        now = [change.now() for change in self.changed]
        for change in self.changed:
            change.put({key: change.after.get(key, _copy(value)) for key, value in change.before.items()})
        try:
            yield
        finally:
            for change, items in zip(self.changed, now, strict=True):
                change.put(items)


def _items(holder):
    return dict(holder) if isinstance(holder, dict) else dict(enumerate(holder))


def _items_of_a_link(link):
    """Returns the attributes that a call may change, except the ones that must not be changed back."""
    stays = _staying(link)
    return {key: value for key, value in vars(link).items() if key not in stays and not key.startswith(_OWN)}


def _staying(link):
    children = {child for child in getattr(link, "_children", ()) if isinstance(child, str)}
    spectral = {getattr(hook, "vector_name", None) for hook in link.local_link_hooks.values()}  # knows, too
    forward = getattr(link if "forward" in vars(link) else type(link), "forward", None)
    is_knowing = any(forward is known.forward for known in _KNOWING)
    return _BOOKKEEPING | link._params | children | spectral | (link._persistent if is_knowing else set())


def _copy(value):
    """Returns a copy of a value that can be changed in place; other values as they are."""
    if isinstance(value, chainer.get_array_types()):
        return value.copy()
    return copy.deepcopy(value) if isinstance(value, _GENERATORS) else value


def _is_same(one, other):
    """Whether contents are known to be equal; arrays on a device are not compared, which would take too long."""
    return isinstance(one, np.ndarray) and one.dtype != object and np.array_equal(one, other)


def _is_for_later(key):
    return isinstance(key, str) and key.startswith(_FOR_LATER)

"""Results of a converted model: variables leave it in float32 and in the order of their axes, wherever they are held.

:mod:`mixprec.rewrite.dispatch` calls :func:`outwards` with the result of the outermost link: tuples, lists, dicts and
objects within one another, such as distributions, data classes and results of ChainerRL. What holds a
variable that changes is copied, without a call of its constructor, and all else stays the same object. In what the
model keeps for itself variables stay as they are: it may need their memory order, and a parameter stays the parameter.
"""

import collections
import contextlib
import copy
import enum
import functools
import itertools
import sys
import types

import chainer

from mixprec.base.announcements import announce

LARGEST = 1000  # so many things in objects are looked at: a result has a few, a replay buffer behind it many
_CONTAINERS = (tuple, list, dict, collections.deque)
_CALLS = (types.MethodType, functools.partial)  # they are made anew, as tuples are
_DATA = (
    *(chainer.Distribution, chainer.utils.CooMatrix, types.SimpleNamespace),
    *(collections.ChainMap, collections.UserDict, collections.UserList),
)
_MACHINERY = {"chainer", "chainermn", "cupy", "cupyx", "mixprec", "numpy", "scipy"}  # except for that data


def outwards(result, scope):
    """Returns a result as it leaves the model.

    Args:
        result: what the outermost link has returned.
        scope: :class:`~mixprec.rewrite.scope.Scope` of its call.

    Returns:
        ``(result, variables)``: the result with float32 instead of 16 bits, arrays included, and with variables in
        the order of their axes; and a list of the variables in it.
    """
    leaves, holders = _look(result, scope)
    changed, above = {}, [key for key, (x, y) in leaves.items() if x is not y]
    while above:
        for holder in holders.get(above.pop(), ()):
            if id(holder) not in changed:
                changed[id(holder)] = holder
                above.append(id(holder))
    return _Copies(leaves, changed).of(result), [y for _, y in leaves.values() if isinstance(y, chainer.Variable)]


def _look(result, scope):
    """Returns ``{id: (leaf, what it becomes)}`` of variables and arrays, and ``{id of a part: what holds it}``."""
    arrays = chainer.Variable, *chainer.get_array_types()
    leaves, holders, seen = {}, {}, {}
    waiting, looked = collections.deque([(result, False)]), 0
    while waiting:
        x, is_inside = waiting.popleft()
        if id(x) in seen:
            continue
        seen[id(x)] = x  # held, so that its id stays its own
        if isinstance(x, arrays):
            leaves[id(x)] = x, scope.leaf(x)
            continue
        if not _may_hold(type(x)):
            continue
        is_inside |= not isinstance(x, (*_CONTAINERS, *_CALLS))
        for part in _parts(x):
            if isinstance(part, arrays) or _may_hold(type(part)):
                looked += is_inside
                if looked > LARGEST:
                    message = "%s: of the objects in a result %d are looked at; variables in others leave in %s"
                    announce(message, scope.root.name, LARGEST, scope.compute.name)
                    break
                holders.setdefault(id(part), []).append(x)
                waiting.append((part, is_inside))
    return leaves, holders


@functools.cache
def _may_hold(cls):
    """Whether objects of a class are looked into for variables and arrays.

    Objects that compute are not: links, optimizers, functions, modules, and the standard library except its containers.
    """
    if issubclass(cls, (*_CONTAINERS, *_CALLS, *_DATA)):
        return True
    packages = {str(base.__module__).partition(".")[0] for base in cls.__mro__}
    is_standard = str(cls.__module__).partition(".")[0] in sys.stdlib_module_names
    return not (packages & _MACHINERY or is_standard or issubclass(cls, (type, types.ModuleType, enum.Enum)))


def _parts(x):
    if isinstance(x, types.MethodType):
        return (x.__self__,)
    if isinstance(x, functools.partial):
        return (x.func, *x.args, *x.keywords.values())
    items = x.values() if isinstance(x, dict) else x if isinstance(x, _CONTAINERS) else ()
    return itertools.chain(items, (value for _, value in _slots(x)), _attributes(x).values())


def _attributes(x):
    """Returns the ``__dict__`` of an object; empty if it has none, or is it, as a dict with items as attributes is."""
    attributes = getattr(x, "__dict__", None) if type(x) not in _CONTAINERS else None
    return attributes if isinstance(attributes, dict) and attributes is not x else {}


def _slots(x):
    """Yields ``(descriptor, value)`` of each slot of an object that has a value."""
    for descriptor in _slots_of(type(x)):
        with contextlib.suppress(AttributeError):
            yield descriptor, descriptor.__get__(x)


@functools.cache
def _slots_of(cls):
    owners = [base for base in cls.__mro__ if "__slots__" in vars(base)]
    return [each for base in owners for each in vars(base).values() if isinstance(each, types.MemberDescriptorType)]


class _Copies:
    """Copies of the containers of variables that change.

    Args:
        leaves: see :func:`_look`.
        changed: ``{id: object}``.
    """

    def __init__(self, leaves, changed):
        self._leaves = leaves
        self._changed = changed
        self._copies = {key: _empty(x) for key, x in changed.items() if not isinstance(x, (tuple, *_CALLS))}
        for key, empty in list(self._copies.items()):
            if empty is not changed[key]:
                self._fill(empty, changed[key])

    def of(self, x):
        """Returns the replacement of an object, or the object itself."""
        if id(x) in self._leaves:
            return self._leaves[id(x)][1]
        if id(x) not in self._changed:
            return x
        if id(x) not in self._copies:  # those that cannot be filled later; no cycle is made of them alone
            self._copies[id(x)] = self._made_anew(x)
        return self._copies[id(x)]

    def _made_anew(self, x):
        if isinstance(x, types.MethodType):
            return types.MethodType(x.__func__, self.of(x.__self__))
        if isinstance(x, functools.partial):
            keywords = {name: self.of(value) for name, value in x.keywords.items()}
            return type(x)(self.of(x.func), *map(self.of, x.args), **keywords)
        result = tuple.__new__(type(x), map(self.of, x))  # also a named one
        self._set_attributes(result, x)
        return result

    def _fill(self, empty, x):
        if isinstance(x, dict):
            dict.update(empty, {key: self.of(value) for key, value in x.items()})
        elif isinstance(x, list):
            list.__setitem__(empty, slice(None), map(self.of, x))
        elif isinstance(x, collections.deque):
            empty.clear()
            empty.extend(map(self.of, x))
        self._set_attributes(empty, x)

    def _set_attributes(self, empty, x):
        # Not by setattr: frozen classes and properties have their own.
        for descriptor, value in _slots(x):
            descriptor.__set__(empty, self.of(value))
        _attributes(empty).update({name: self.of(value) for name, value in _attributes(x).items()})
        if getattr(x, "__dict__", None) is x:
            object.__setattr__(empty, "__dict__", empty)


def _empty(x):
    """Returns an object of the class of ``x``, without a call of its constructor; itself if there is no way to."""
    cls = type(x)
    if not hasattr(cls, "__del__"):  # which may close a file that both have
        for make in (object.__new__, lambda cls: copy.copy(x), lambda cls: cls.__new__(cls)):
            with contextlib.suppress(Exception):
                return make(cls)
    announce(
        "%s.%s cannot be copied: variables in a result of this class leave as they are", cls.__module__, cls.__name__
    )
    return x

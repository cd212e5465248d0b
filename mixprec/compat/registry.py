"""The one list of all attributes of other libraries that mixprec replaces while a program runs.

Each entry is a :class:`Patch`, declared where its replacement is written. The import hook of :mod:`mixprec.startup`,
``mixprec.convert``, ``MixedPrecisionOptimizer.setup`` and ``mixprec.capture`` apply them; ``python -m mixprec`` prints
them (:mod:`mixprec.patches`). This module knows nothing of Chainer.

An attribute may have several patches: ``Link.serialize`` has one of ``convert`` and one of ``setup``. They lie on top
of each other in the order in which they were applied, and each can be taken back alone.
"""

import contextlib
import functools
import importlib
import itertools
import re
import sys
import threading
import types
from typing import NamedTuple

LEAVE = object()  # returned by a patch: the attribute stays as it is, since nothing is wrong with it here
MISSING = object()  # handed to a patch: there is no such attribute yet

_patches = []  # all, in the order of their declaration
_layers = {}  # place -> [(patch, what was there before it, or MISSING)], the last one outermost
_lock = threading.RLock()


class Patch:
    """One entry of the list: a replacement of one attribute, or of several for the same reason.

    Args:
        targets: ``"package.module:Class.attribute"``, or a tuple of these; ``"package.module"`` is a module. ``{a,b}``
            stands for a and b. A target with ``*`` is a pattern: what it stands for is given to :meth:`apply_to`.
        make: function from the attribute, or :data:`MISSING`, to what replaces it, or :data:`LEAVE`.
        why: what goes wrong without it, in one line.
        when: what applies it, such as ``"import chainer"``.

    Attributes:
        is_applied: whether it is applied now.

    Example:
        >>> import string
        >>> patch = Patch("string:digits", lambda digits: digits + "x", "one digit is missing", "never")
        >>> with patch.applied():
        ...     string.digits
        '0123456789x'
        >>> string.digits
        '0123456789'
    """

    def __init__(self, targets, make, why, when):
        self.targets = (targets,) if isinstance(targets, str) else tuple(targets)
        self.make = make
        self.why = why
        self.when = when
        self.is_applied = False
        self._uses = 0
        _patches.append(self)

    def apply(self, module=None):
        """Replaces all targets, but those that it has replaced already.

        Args:
            module: name of the only module whose attributes are replaced, which has just been imported; ``None`` for
                all targets.
        """
        with _lock:
            for target in self._names():
                if module in (None, target.partition(":")[0]):
                    self._put(_place(target))
            self.is_applied = True

    def apply_to(self, owner, name):
        """Replaces one of the attributes that a pattern stands for, unless it has replaced that already."""
        with _lock:
            self._put(_Attribute(owner, name))
            self.is_applied = True

    def undo(self):
        """Takes this patch off all attributes that have it; those of other patches stay on them."""
        with _lock:
            for place, patches in _all_layers():
                if self in patches:
                    self._take_off(place, patches.index(self))
            self.is_applied = False

    @contextlib.contextmanager
    def applied(self):
        """Returns a context inside of which the patch is applied; contexts may overlap, also in several threads."""
        with _lock:
            self.apply()
            self._uses += 1
        try:
            yield
        finally:
            with _lock:
                self._uses -= 1
                if not self._uses:
                    self.undo()

    def _names(self):
        return [name for target in self.targets if "*" not in target for name in expanded(target)]

    def _put(self, place):
        layers = _layers.get(place, [])
        if any(patch is self for patch, _ in layers):
            return
        replacement = self.make(place.value())
        if replacement is not LEAVE:
            _layers[place] = [*layers, (self, place.own())]
            place.set(replacement)

    def _take_off(self, place, index):
        layers = _layers.pop(place)
        if index:
            _layers[place] = layers[:index]
        place.set(layers[index][1])
        for above, _ in layers[index + 1 :]:
            above._put(place)


def patch(*targets, when):
    """Decorates the function ``make`` of a :class:`Patch`; the first line of its docstring says why."""

    def declare(make):
        return Patch(targets, make, first_line(make), when)

    return declare


def patches():
    """Returns all entries, in the order of their declaration."""
    return tuple(_patches)


def replaced():
    """Returns what is replaced now: ``{(owner, name): patches}``, outermost last.

    The owner is a module, a class or a function; for a module that is replaced it is ``None``.
    """
    return {(getattr(place, "owner", None), place.name): patches for place, patches in _all_layers()}


def undo():
    """Takes back all patches: every library is as it was imported, and converted models do not run any more."""
    for each in reversed(_patches):
        each.undo()


def _all_layers():
    return [(place, tuple(patch for patch, _ in layers)) for place, layers in _layers.items()]


def first_line(function):
    """Returns the first line of a docstring."""
    return function.__doc__.strip().partition("\n")[0]


def expanded(target):
    """Returns the names that a target stands for.

    Example:
        >>> expanded("m:{A,B}.f{,_cpu}")
        ['m:A.f', 'm:A.f_cpu', 'm:B.f', 'm:B.f_cpu']
    """
    parts = [part.split(",") for part in re.split(r"[{}]", target)]
    return ["".join(names) for names in itertools.product(*parts)]


def _place(target):
    module, colon, path = target.partition(":")
    if not colon:
        return _Module(module)
    *owners, name = path.split(".")
    return _Attribute(functools.reduce(getattr, owners, importlib.import_module(module)), name)


class _Attribute(NamedTuple):
    """An attribute of a module, a class or a function."""

    owner: object
    name: str

    def own(self):
        return vars(self.owner).get(self.name, MISSING)

    def value(self):
        return getattr(self.owner, self.name, MISSING)

    def set(self, value):
        before = self.own()
        if value is MISSING:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, value)
        if isinstance(self.owner, types.ModuleType) and callable(before) and callable(value):
            _follow(self.owner.__name__.partition(".")[0], before, value)


class _Module(NamedTuple):
    """A module, as ``import`` finds it."""

    name: str

    def own(self):
        return sys.modules.get(self.name, MISSING)

    value = own

    def set(self, value):
        package, _, leaf = self.name.rpartition(".")
        namespace = vars(sys.modules[package]) if package in sys.modules else {}
        if value is MISSING:
            del sys.modules[self.name]
            namespace.pop(leaf, None)
        else:
            sys.modules[self.name] = namespace[leaf] = value


def _follow(package, before, now):
    """Replaces a function also where modules of its package have imported it from its own module."""
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith(package) and isinstance(module, types.ModuleType):
            for name in [name for name, value in vars(module).items() if value is before]:
                setattr(module, name, now)

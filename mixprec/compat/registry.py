"""The one list of all attributes of other libraries that mixprec replaces while a program runs.

Each entry is a :class:`Patch`, declared where its replacement is written. The import hook of :mod:`mixprec.startup`,
``mixprec.convert``, ``MixedPrecisionOptimizer.setup`` and ``mixprec.capture`` apply them; ``mixprec info --patches``
prints them (:mod:`mixprec.patches`). This module knows nothing of Chainer.

An attribute may have several patches: ``Link.serialize`` has one of ``convert`` and one of ``setup``. They lie on top
of each other in the order in which they were applied, and each can be taken back alone.

Other code replaces attributes, too: a spy, a profiler, ``mock.patch``, ``importlib.reload``. What an attribute holds
counts, therefore: replacements that are gone from it are put back when a patch of it is applied the next time, and a
wrapper around one is left where it is. A wrapper that hides what it calls gets a second replacement on top of it, so
each replacement must do no harm inside of another one.
"""

import contextlib
import dataclasses
import functools
import importlib
import itertools
import re
import sys
import threading
import types
from typing import NamedTuple

from mixprec.compat.wrapped import behind

LEAVE = object()  # returned by a patch: the attribute stays as it is, since nothing is wrong with it here
MISSING = object()  # handed to a patch: there is no such attribute yet

_patches = []  # all, in the order of their declaration
_layers = {}  # place -> tuple of _Layer, the last one outermost; other code may have replaced some of them since
_former = {}  # place -> such tuples that were there before, the latest first: mock.patch puts one back at its end
_FORMER = 8  # mock.patch in mock.patch in ...: how many of these are kept
_lock = threading.RLock()


class Patch:
    """One entry of the list: a replacement of one attribute, or of several for the same reason.

    Args:
        targets: ``"package.module:Class.attribute"``, or a tuple of these; ``"package.module"`` is a module. ``{a,b}``
            stands for a and b. A target with ``*`` is a pattern: what it stands for is given to :meth:`apply_to`.
        make: function from the attribute, or :data:`MISSING`, to what replaces it, or :data:`LEAVE`.
        why: what goes wrong without it, in one line.
        when: what applies it, such as ``"import chainer"``.

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
        self._uses = 0
        _patches.append(self)

    def apply(self, module=None):
        """Replaces all targets, but those that still have the replacement.

        Args:
            module: name of the only module whose attributes are replaced, which has just been imported; ``None`` for
                all targets.
        """
        with _lock:
            for target in self._names():
                if module in (None, target.partition(":")[0]):
                    self._put(_place(target))

    def apply_to(self, owner, name):
        """Replaces one of the attributes that a pattern stands for, unless that still has the replacement."""
        with _lock:
            self._put(_Attribute(owner, name))

    def undo(self):
        """Takes this patch off all attributes that have it; those of other patches stay on them.

        It stays under a wrapper that other code has put around it, and where other code has replaced it, that stays.
        """
        with _lock:
            for place in dict.fromkeys([*_layers, *_former]):
                self._take_off(place)

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
        """Applies this patch to a place, on top of the others there."""
        before, layers = _layers.get(place, ()), _standing(place)
        for layer in before[len(layers) :]:
            # Back to what was there before: the same replacements again, which other modules have imported.
            if layer.before is place.own() and all(layer.patch is not each.patch for each in layers):
                place.set(layer.replacement)
                layers = (*layers, layer)
        if all(layer.patch is not self for layer in layers):
            own, replacement = place.own(), self.make(place.value())
            if replacement is not LEAVE:
                place.set(replacement)
                layers = (*layers, _Layer(self, own, replacement))
        _keep(place, layers)

    def _take_off(self, place):
        before, layers = _layers.get(place, ()), _standing(place)
        index = next((index for index, layer in enumerate(layers) if layer.patch is self), None)
        if index is None:
            if any(layer.patch is self for layer in before):
                _keep(place, tuple(layer for layer in before if layer.patch is not self))
            return
        above = layers[index + 1 :]
        on_top = [*(layer.before for layer in above), place.own()]
        if any(layer.replacement is not value for layer, value in zip(layers[index:], on_top, strict=True)):
            return  # other code's wrapper is around it
        place.set(layers[index].before)
        _keep(place, layers[:index])
        if not index:
            _former.pop(place, None)
        for layer in above:
            layer.patch._put(place)


@dataclasses.dataclass(frozen=True, eq=False)
class _Layer:
    """A patch on one attribute: what was there before it, or :data:`MISSING`, and what it has put there."""

    patch: Patch
    before: object
    replacement: object


def _standing(place):
    """Returns the layers that are on a place now, a tuple: those that other code has taken off are not among them."""
    layers, now = _layers.get(place, ()), place.own()
    if layers and layers[-1].replacement is now:
        return layers
    stacks = [layers, *_former.get(place, ())]
    places = {id(layer.replacement): stack[: i + 1] for stack in reversed(stacks) for i, layer in enumerate(stack)}
    return next((places[id(value)] for value in behind(now) if id(value) in places), ())


def _keep(place, layers):
    """Notes the layers of a place; what was there before is kept, if it is not under them or a part of them."""
    before = _layers.pop(place, ())
    if layers:
        _layers[place] = layers
    if before[: len(layers)] != layers[: len(before)] or (before and not layers):
        _former[place] = [before, *_former.get(place, ())][:_FORMER]


def patch(*targets, when):
    """Decorates the function ``make`` of a :class:`Patch`; the first line of its docstring says why."""

    def declare(make):
        return Patch(targets, make, first_line(make), when)

    return declare


def replacing(run):
    """Returns the ``make`` of a patch, given what runs in the place of an attribute and gets that as first argument."""

    @functools.wraps(run)
    def make(original):
        @functools.wraps(original)
        def replacement(*args, **kwargs):
            return run(original, *args, **kwargs)

        return replacement

    return make


def patch_around(*targets, when):
    """Decorates what runs in the place of each target, see :func:`replacing`; otherwise as :func:`patch`."""
    return lambda run: patch(*targets, when=when)(replacing(run))


def patches():
    """Returns all entries, in the order of their declaration."""
    return tuple(_patches)


def replaced():
    """Returns what is replaced now: ``{(owner, name): patches}``, outermost last.

    The owner is a module, a class or a function; for a module that is replaced it is ``None``.

    Example:
        >>> import string
        >>> patch = Patch("string:digits", lambda digits: digits + "x", "one digit is missing", "never")
        >>> with patch.applied():
        ...     replaced()[string, "digits"] == (patch,)
        True
        >>> (string, "digits") in replaced()
        False
    """
    places = {place: tuple(layer.patch for layer in _standing(place)) for place in list(_layers)}
    return {(getattr(place, "owner", None), place.name): patches for place, patches in places.items() if patches}


def undo():
    """Takes back all patches: every library is as it was imported, and converted models do not run any more.

    A wrapper that other code has put around a replacement stays, and the replacement with it.

    Example:
        >>> from mixprec import patches
        >>> patches.undo()  # doctest: +SKIP
        >>> patches.replaced()  # doctest: +SKIP
        {}
    """
    for each in reversed(_patches):
        each.undo()


def first_line(function):
    """Returns the first line of a docstring; Python leaves docstrings out with ``-OO``."""
    text = function.__doc__ or "(python -OO leaves out the reason)"
    return text.strip().partition("\n")[0]


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

"""The one list of all attributes of other libraries that mixprec replaces while a program runs.

Each entry is a :class:`Patch`, declared where its replacement is written. The import hook of :mod:`mixprec.startup`,
``mixprec.convert``, ``MixedPrecisionOptimizer.setup`` and ``mixprec.capture`` apply them; ``mixprec info --patches``
prints them (:mod:`mixprec.patches`). This module does not depend on Chainer.

An attribute may have several patches: ``Link.serialize`` has one of ``convert`` and one of ``setup``. They are stacked
in the order in which they were applied, and each can be undone alone.

Other code replaces attributes, too: a spy, a profiler, ``mock.patch``, ``importlib.reload``. Therefore the current
value of an attribute decides: missing replacements are restored when a patch of it is applied the next time, and a
wrapper around a replacement stays. A wrapper that hides the function that it calls gets a second replacement on top of
it, so replacements must be harmless when nested.
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

LEAVE = object()  # returned by a patch: the attribute stays as it is, since it works here
MISSING = object()  # passed to a patch: there is no such attribute yet

_patches = []  # all patches, in the order of their declaration
_layers = {}  # attribute -> tuple of _Layer, the last one outermost; other code may have replaced some of them since
_former = {}  # attribute -> earlier tuples, the latest first: mock.patch restores one at its end
_FORMER = 8  # number of these, for nested mock.patch
_lock = threading.RLock()


class Patch:
    """One entry of the list: a replacement of one attribute, or of several for the same reason.

    Args:
        targets: ``"package.module:Class.attribute"``, or a tuple of these; ``"package.module"`` is a module. ``{a,b}``
            means a and b. A target with ``*`` is a pattern: its attributes are given to :meth:`apply_to`.
        make: function from the attribute, or :data:`MISSING`, to its replacement, or :data:`LEAVE`.
        why: what goes wrong without it, in one line.
        when: the event at which it is applied, such as ``"import chainer"``.

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
        """Replaces all targets, except the ones that still have the replacement.

        Args:
            module: name of the only module whose attributes are replaced, which has just been imported; ``None`` for
                all targets.
        """
        with _lock:
            for target in self._names():
                if module in (None, target.partition(":")[0]):
                    self._put(_attribute(target))

    def apply_to(self, owner, name):
        """Replaces one of the attributes of a pattern, unless it still has the replacement."""
        with _lock:
            self._put(_Attribute(owner, name))

    def undo(self):
        """Removes this patch from all attributes that have it; other patches on them stay.

        It stays inside of wrappers of other code; attributes that other code has replaced are not changed.
        """
        with _lock:
            for attribute in dict.fromkeys([*_layers, *_former]):
                self._take_off(attribute)

    @contextlib.contextmanager
    def applied(self):
        """Returns a context in which the patch is applied; contexts may overlap, also in several threads."""
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

    def _put(self, attribute):
        """Applies this patch to an attribute, on top of other patches."""
        before, layers = _layers.get(attribute, ()), _standing(attribute)
        for layer in before[len(layers) :]:
            # Restored by other code: use the same replacements again, which other modules have imported.
            if layer.before is attribute.own() and all(layer.patch is not each.patch for each in layers):
                attribute.set(layer.replacement)
                layers = (*layers, layer)
        if all(layer.patch is not self for layer in layers):
            own, replacement = attribute.own(), self.make(attribute.value())
            if replacement is not LEAVE:
                attribute.set(replacement)
                layers = (*layers, _Layer(self, own, replacement))
        _keep(attribute, layers)

    def _take_off(self, attribute):
        before, layers = _layers.get(attribute, ()), _standing(attribute)
        index = next((index for index, layer in enumerate(layers) if layer.patch is self), None)
        if index is None:
            if any(layer.patch is self for layer in before):
                _keep(attribute, tuple(layer for layer in before if layer.patch is not self))
            return
        above = layers[index + 1 :]
        on_top = [*(layer.before for layer in above), attribute.own()]
        if any(layer.replacement is not value for layer, value in zip(layers[index:], on_top, strict=True)):
            return  # other code's wrapper is around it
        attribute.set(layers[index].before)
        _keep(attribute, layers[:index])
        if not index:
            _former.pop(attribute, None)
        for layer in above:
            layer.patch._put(attribute)


@dataclasses.dataclass(frozen=True, eq=False)
class _Layer:
    """A patch on one attribute: the value before it, or :data:`MISSING`, and its replacement."""

    patch: Patch
    before: object
    replacement: object


def _standing(attribute):
    """Returns a tuple of the current layers of an attribute, without layers that other code has removed."""
    layers, now = _layers.get(attribute, ()), attribute.own()
    if layers and layers[-1].replacement is now:
        return layers
    stacks = [layers, *_former.get(attribute, ())]
    by_id = {id(layer.replacement): stack[: i + 1] for stack in reversed(stacks) for i, layer in enumerate(stack)}
    return next((by_id[id(value)] for value in behind(now) if id(value) in by_id), ())


def _keep(attribute, layers):
    """Stores the layers of an attribute; keeps the former ones if the new ones do not include them."""
    before = _layers.pop(attribute, ())
    if layers:
        _layers[attribute] = layers
    if before[: len(layers)] != layers[: len(before)] or (before and not layers):
        _former[attribute] = [before, *_former.get(attribute, ())][:_FORMER]


def patch(*targets, when):
    """Decorates the function ``make`` of a :class:`Patch`; the first line of its docstring says why."""

    def declare(make):
        return Patch(targets, make, first_line(make), when)

    return declare


def replacing(run):
    """Returns the ``make`` of a patch for a function that replaces an attribute, and gets it as first argument."""

    @functools.wraps(run)
    def make(original):
        @functools.wraps(original)
        def replacement(*args, **kwargs):
            return run(original, *args, **kwargs)

        return replacement

    return make


def patch_around(*targets, when):
    """Decorates a function that replaces each target, see :func:`replacing`; otherwise as :func:`patch`."""
    return lambda run: patch(*targets, when=when)(replacing(run))


def patches():
    """Returns all entries, in the order of their declaration."""
    return tuple(_patches)


def replaced():
    """Returns the currently replaced attributes: ``{(owner, name): patches}``, outermost last.

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
    standing = {each: tuple(layer.patch for layer in _standing(each)) for each in list(_layers)}
    return {(getattr(each, "owner", None), each.name): patches for each, patches in standing.items() if patches}


def undo():
    """Undoes all patches: every library is as after its import, and converted models no longer run.

    Wrappers of other code around a replacement stay, together with the replacement.

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
    """Returns the expanded names of a target.

    Example:
        >>> expanded("m:{A,B}.f{,_cpu}")
        ['m:A.f', 'm:A.f_cpu', 'm:B.f', 'm:B.f_cpu']
    """
    parts = [part.split(",") for part in re.split(r"[{}]", target)]
    return ["".join(names) for names in itertools.product(*parts)]


def _attribute(target):
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
    """A module in ``sys.modules``."""

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

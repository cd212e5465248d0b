"""Saves the running statistics of a model, so that a skipped step can restore them.

``setup`` makes :class:`RunningStatistics`. A step begins with the first call of a link in training mode, with or
without backprop: ``F.forget``, a teacher and frozen layers run without it. Link hooks save the statistics then;
``update(lossfun)`` saves the rest. The end of ``update()`` restores the values, or discards the copies.

A step may call models of other optimizers, too, as a critic's step calls the generator. So a hook also saves in its
first call after the last ``update()`` in the thread, of any optimizer (:class:`_Calls`).
"""

import collections
import contextlib
import itertools
import operator
import threading
import weakref

import chainer
import numpy as np

from mixprec.backends import launcher_of
from mixprec.backends.transfers import on_host, to_host
from mixprec.base.scoped import scoped
from mixprec.optimizer.batch.saved_arrays import SavedArrays, restore

# Initial values of a lazily sized batch normalization, unless its caller gave others.
_FIRST_VALUES = {"avg_mean": 0.0, "avg_var": 1.0}
_SAVED, _PERSISTENT = operator.attrgetter("saved"), operator.attrgetter("_persistent")


class _Calls(threading.local):
    """The link calls of this thread since its last ``update()`` ended, or since ``update(lossfun)`` began.

    Attributes:
        first: hook of a link -> the values saved in its first call, ``(order, saved)`` as in :class:`_Saver`.
    """

    def __init__(self):
        self.begin()

    def begin(self):
        self.first = weakref.WeakKeyDictionary()


_calls = _Calls()


class RunningStatistics:
    """Guards the persistent values of every link (``avg_mean``, ``avg_var`` and ``N`` of batch normalization).

    A forward pass in training mode changes them before it is known whether the step will be skipped. A link hook
    therefore copies the values of its link right before the link's first forward pass in a step. Where the beginning of
    a step is known, :meth:`save` copies all values, also of links that are called by their ``forward``.

    Args:
        index: :class:`~mixprec.optimizer.model_index.ModelIndex` of the model whose statistics to guard.
    """

    def __init__(self, index):
        self._copies, self._has_begun = None, False
        self.watch(index)
        self._forget_saved()

    def __getstate__(self):
        return {"_copies": None, "_has_begun": False}  # the saved values are in the hooks of the links

    def watch(self, index):
        """Guards the links of another model; values already saved from them are kept."""
        self._index = index
        self._guard_links()

    def _guard_links(self):
        """Puts a hook on each link that has, or may get, persistent values: links can be added and removed."""
        self._links = self._index.links
        # Hooks such as spectral normalization register a value when there is a weight: in a pass, or from a file.
        guarded = [link for link in self._links if link._persistent or link._n_local_link_hooks]
        self._savers = [_saver(link) or _guard(link) for link in guarded]
        self._unguarded = [link for link in self._links if not (link._persistent or link._n_local_link_hooks)]

    @property
    def are_saved(self):
        """Whether a forward pass has begun a step."""
        return any(map(_SAVED, self._savers))

    def save(self):
        """Begins a step in training mode: copies the values of all links; on a device in one launch."""
        self._has_begun = True
        _calls.begin()
        savers = [saver for saver in self._savers if not saver.saved]
        if not savers or not chainer.config.train:
            return
        held = {saver: saver.values() for saver in savers}
        found = {id(value): value for values in held.values() for value in values.values() if _is_array(value)}
        copies = self._copied(
            [array for array in found.values() if type(array) is not np.ndarray and array.flags.c_contiguous]
        )
        for saver, values in held.items():
            saver.keep({name: (value, copies.get(id(value))) for name, value in values.items()})

    def forget(self):
        """Ends a step: the values saved in it are discarded."""
        if self._has_begun:  # otherwise the user's own loop may continue with a step of another optimizer
            _forget_calls()
        self._has_begun = False
        _calls.begin()
        self._forget_saved()

    def _forget_saved(self):
        """Discards saved values; the next forward pass saves again. New links are guarded from now on."""
        if self._index.links is not self._links or any(map(_PERSISTENT, self._unguarded)):
            self._guard_links()
        for number, saver in enumerate(self._savers):
            if saver.link._local_link_hooks.get(saver.name) is not saver:  # the user has removed it
                self._savers[number] = _guard(saver.link)
            elif saver.saved:
                saver.saved = {}

    def _copied(self, arrays):
        """Copies arrays on a device in one launch; returns the copies by the ids of the arrays, empty if impossible."""
        if not arrays:
            return {}
        if self._copies is None or not self._copies.are_of(arrays):
            launcher = launcher_of(arrays[0])
            if launcher is None or not all(map(launcher.holds, arrays)):
                return {}
            self._copies = SavedArrays(arrays, launcher)
        self._copies.save()
        return dict(zip(map(id, arrays), self._copies.copies, strict=True))

    @property
    def copies(self):
        """The :class:`~mixprec.optimizer.batch.saved_arrays.SavedArrays` of the last :meth:`save`, or ``None``."""
        return self._copies

    def moved(self):
        """Returns ``[(array, its copy from before the step)]`` for arrays that the step may have changed in place."""
        arrays = {}
        for name, link, value, before in self._saved():
            now = link.__dict__.get(name)
            if _is_array(now) and now is value and now.flags.c_contiguous:
                arrays[id(now)] = now, before
        return list(arrays.values())

    def undo(self, skipped, but=()):
        """If ``skipped``, restores the values from before the step; arrays in place.

        Args:
            skipped: a bool, or a boolean array of shape (); the host reads an array on a device only if the step has
                changed a number that a link keeps on the host (batch normalization while it fine-tunes), or has
                replaced an array.
            but: the arrays from :meth:`moved` that the kernel ``update`` restores.
        """
        if on_host(skipped) and not skipped:
            return
        done = {id(array) for array, _ in but}
        for name, link, value, before in self._saved():
            now = link.__dict__.get(name)
            if _is_array(now) and (now is value or (value is None and name in _FIRST_VALUES)):
                if id(now) not in done:
                    restore(now, before, skipped)
            elif _moved(now, value) and to_host(skipped):
                link.__dict__[name] = value

    def _saved(self):
        """Yields ``name, link, value, copy`` of saved values, the last first: the first copy of an array is right."""
        own = [(saver.order, saver.link, saver.saved) for saver in self._savers]
        known = set(self._savers)
        others = [(*first, saver) for saver, first in list(_calls.first.items()) if saver not in known]
        own += [(order, saver.link, saved) for order, saved, saver in others]
        for _, link, saved in sorted(own, key=lambda each: -each[0]):
            for name, (value, before) in saved.items():
                yield name, link, value, before

    @contextlib.contextmanager
    def outside_of_steps(self):
        """A context whose calls are not part of a step: their changes stay, as when statistics are recomputed."""
        of_step = {saver for saver in self._savers if saver.saved}
        try:
            with scoped(_calls, first=weakref.WeakKeyDictionary()):
                yield
        finally:
            for saver in self._savers:
                if saver not in of_step:
                    saver.saved = {}

    @contextlib.contextmanager
    def kept(self):
        """A context that restores the statistics at its end."""
        savers = list(self._savers)
        outer, calls = [saver.saved for saver in savers], _calls.first
        _calls.begin()
        for saver in savers:
            saver.saved = {}
            saver.save()
        try:
            yield
        finally:
            self.undo(True)
            _forget_calls()
            _calls.first = calls
            for saver, saved in zip(savers, outer, strict=True):
                saver.saved = saved


def loaded(link):
    """Called when the persistent values of a link were loaded: saved values are discarded."""
    if (saver := _saver(link)) is not None:
        saver.saved = {}
        _calls.first.pop(saver, None)


def _forget_calls():
    """Makes the link hooks of all optimizers discard the values saved for these calls."""
    for saver, (_, saved) in list(_calls.first.items()):
        if saver.saved is saved:
            saver.saved = {}


class _Saver(chainer.LinkHook):
    name = "mixprec.RunningStatistics"

    orders = itertools.count()

    def __init__(self, link):
        self.link = link
        self.order = 0
        self.saved = {}  # name -> (value, a copy of it)

    def forward_preprocess(self, args):
        # A link that was copied by Link.copy() shares the hooks of the original.
        if args.link is self.link and chainer.config.train and not (self.saved and self in _calls.first):
            self.save()

    def save(self):
        self.keep({name: (value, None) for name, value in self.values().items()})

    def values(self):
        values = self.link.__dict__
        return {name: values[name] for name in self.link._persistent if name in values}

    def keep(self, values):
        """Stores values by name, with their copies; ``None`` for a copy that is still to be made."""
        saved = {
            name: (value, self._copy(name, value) if copy is None else copy) for name, (value, copy) in values.items()
        }
        first = next(self.orders), saved
        _calls.first[self] = first
        if not self.saved:  # otherwise by a call for another optimizer's step, or before an earlier one
            self.order, self.saved = first

    def _copy(self, name, value):
        if _is_array(value):
            return value.copy()
        if value is None and name in _FIRST_VALUES:
            given = getattr(self.link, f"_initial_{name}", None)
            return _FIRST_VALUES[name] if given is None else given
        return value


def _guard(link):
    saver = _Saver(link)
    # First, before hooks such as spectral normalization, which changes a persistent vector. In a new dict, as a link
    # that was copied by Link.copy() shares the dict of the original.
    others = {name: hook for name, hook in link.local_link_hooks.items() if name != saver.name}
    link._local_link_hooks = collections.OrderedDict({saver.name: saver, **others})
    return saver


def _saver(link):
    saver = link.local_link_hooks.get(_Saver.name) if link._n_local_link_hooks else None
    return saver if saver is not None and saver.link is link else None


def _is_array(value):
    return isinstance(value, chainer.get_array_types())


def _moved(now, before):
    if _is_array(now) or _is_array(before):
        return now is not before
    return now is not before and now != before

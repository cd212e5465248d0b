"""The running statistics of a model, so that a skipped step can leave them as they were."""

import contextlib
import uuid

import chainer

from mixprec.backends.reading import known, read

# What a lazily sized batch normalization starts from, unless its caller gave something else.
_FIRST_VALUES = {"avg_mean": 0.0, "avg_var": 1.0}


class Statistics:
    """Guards the persistent values of every link (``avg_mean``, ``avg_var`` and ``N`` of batch normalization).

    A forward pass in training mode moves them before anybody knows whether the step will be skipped. A link hook
    therefore copies those of a link right before its first forward pass of a step, whoever calls it.

    Args:
        model: the link whose statistics to guard.
    """

    def __init__(self, model):
        self._model = model
        self._name = f"mixprec.Statistics.{uuid.uuid4().hex}"
        self._savers = []
        self.forget()

    def forget(self):
        """Ends a step: what the next forward pass finds is what is kept. Links that are new are guarded from now on."""
        for _, saver in self._savers:
            saver.saved = None
        for link in self._model.links():
            if link._persistent and self._name not in link.local_link_hooks:
                saver = _Saver(self._name)
                link.add_hook(saver)
                # before other hooks, such as spectral normalization, which moves a persistent vector
                link.local_link_hooks.move_to_end(self._name, last=False)
                self._savers.append((link, saver))

    def undo(self, skipped):
        """Brings back, if ``skipped``, the values from before the step; arrays in place.

        Args:
            skipped: a bool, or a boolean array of shape (); in an array on a device the host looks only if the step
                has moved a number that a link keeps on the host (batch normalization while it fine-tunes), or has
                created an array whose first values are not known.
        """
        for link, saver in self._savers:
            for name, before in (saver.saved or {}).items():
                now = link.__dict__[name]
                if isinstance(now, chainer.get_array_types()) and before is not None:
                    _undo_array(now, before, skipped)
                elif now is not before and (before is None or now != before) and read(skipped):
                    link.__dict__[name] = before

    @contextlib.contextmanager
    def kept(self):
        """Leaves the statistics after the block as they were before it."""
        before = [(link, saver.saved) for link, saver in self._savers]
        for link, saver in self._savers:
            saver.save(link)
        try:
            yield
        finally:
            self.undo(True)
            for (_, saver), (_, saved) in zip(self._savers, before, strict=True):
                saver.saved = saved


class _Saver(chainer.LinkHook):
    def __init__(self, name):
        self.name = name
        self.saved = None

    def forward_preprocess(self, args):
        if self.saved is None and chainer.config.train and chainer.config.enable_backprop:
            self.save(args.link)

    def save(self, link):
        self.saved = {name: _before(link, name) for name in link._persistent}


def _before(link, name):
    value = link.__dict__[name]
    if isinstance(value, chainer.get_array_types()):
        return value.copy()
    if value is None and name in _FIRST_VALUES:
        given = getattr(link, f"_initial_{name}", None)
        return _FIRST_VALUES[name] if given is None else given
    return value


def _undo_array(now, before, skipped):
    if known(skipped):
        if skipped:
            now[...] = before
    else:
        xp = chainer.backend.get_array_module(now)
        now[...] = xp.where(skipped, xp.asarray(before, dtype=now.dtype), now)

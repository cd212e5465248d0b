"""Candidates: several functions that compute the same on a device, and the choice between them.

Convolutions and batch normalizations, here and in :mod:`mixprec.backends.nchw`, choose one for each shape. A generator
yields the candidates, the one first that is taken without measuring: what comes after it is never built then.

Some first places are rules: own kernels for batch normalizations, sums inside convolutions, first convolutions on
squares. On an H100 these had won wherever it made a difference (benchmarks/results/2026-11-26-profile-h100.json, and
-autotuned.json: 41.5 and 36.0 ms a step). On such a GPU nothing else is a candidate, on others the rule is a guess.
"""

import functools
import hashlib
import logging
import threading
from importlib import resources

import chainer

from mixprec.backends.cuda.base import Base
from mixprec.backends.cudnn import settings
from mixprec.base.cudnn_library import CudnnMissing

_CAPABILITY_OF_RULES = 90  # an H100
# The files, by how their names begin, that decide how fast a candidate is, by how keys begin.
_FILES = {
    "batch_norm": ("batch_norm",),
    "conv": ("batch_norm", "channels", "convolution", "stem"),
    "plain conv": ("batch_norm_planes", "bias", "convolution", "planes"),
}
_log = logging.getLogger("mixprec")


class WithoutCudnn:
    """Without cuDNN in place of :class:`~mixprec.backends.cudnn.context.CudnnContext`: supports nothing, and says why.

    Args:
        reason: one line with what is missing and what to do.

    Attributes:
        capability: ``None``.
    """

    capability = None

    def __init__(self, reason):
        self._reason = reason

    def supports(self, operation):
        """Returns ``False``."""
        return False

    def plan(self, operation):
        """Raises :class:`~mixprec.base.cudnn_library.CudnnMissing`."""
        raise CudnnMissing(f"{operation} is computed by cuDNN: {self._reason}")

    def plans(self):
        """Returns an empty list."""
        return []

    def known(self, key):
        """Returns ``None``."""

    def measures(self):
        """Returns ``False``."""
        return False


class _LazyPlan:
    """In place of a plan, for a candidate that may never be taken: it is built by its first run.

    Args:
        cudnn: :class:`~mixprec.backends.cudnn.context.CudnnContext`.
        operation: :class:`~mixprec.backends.cudnn.operation.Operation`.
    """

    def __init__(self, cudnn, operation):
        self._cudnn, self.operation = cudnn, operation

    def run(self, *addresses):
        self.run = self._cudnn.plan(self.operation).run
        self.run(*addresses)


class _Trusting:
    """In place of a :class:`~mixprec.backends.cudnn.context.CudnnContext` where the choice is known: builds nothing.

    Args:
        cudnn: the :class:`~mixprec.backends.cudnn.context.CudnnContext`.
    """

    capability = None

    def __init__(self, cudnn):
        self._cudnn = cudnn

    def supports(self, operation):
        return True

    def plan(self, operation):
        return _LazyPlan(self._cudnn, operation)


_NEVER = WithoutCudnn("chainer.config.use_cudnn is 'never'; set it to 'auto'")


class Candidates(Base):
    """Lists the candidates for something once for each key, and chooses one."""

    def __init__(self, launcher, cudnn, matrices=None):
        super().__init__(launcher, cudnn, matrices)
        self._chosen = {}  # dicts of functions by what else they depend on: settings, and whether cuDNN is allowed
        self._last = None, None, None  # these, of the last call
        self._trusting = threading.local()  # set in a thread while it lists the candidates for a known choice

    def _cudnn(self):
        """Returns the device's :class:`~mixprec.backends.cudnn.context.CudnnContext`, or what stands in for it."""
        if chainer.config.use_cudnn == "never":
            return _NEVER
        return getattr(self._trusting, "cudnn", None) or self.cudnn

    def _is_ruled(self):
        """Whether a first place is one by rule, so that nothing else is a candidate."""
        capability = self._cudnn().capability
        if capability not in (None, _CAPABILITY_OF_RULES) and not self._cudnn().measures():
            _say_guess(capability)
        return capability == _CAPABILITY_OF_RULES

    def _by_rule(self, first, others):
        """Yields candidates, those by rule before the others; on such a GPU they are all, if there are any.

        Args:
            first: iterable of those by rule.
            others: iterable.
        """
        is_alone = False
        for candidate in first:
            is_alone = self._is_ruled()
            yield candidate
        if not is_alone:
            yield from others

    def _is_listed(self):
        """Whether candidates are only listed for the sake of a known choice, which may be any: none is built."""
        return getattr(self._trusting, "cudnn", None) is not None

    def _choose(self, key, candidates, arguments):
        """Returns the function to call.

        Args:
            key: what is to be computed: everything that the candidates and their speed depend on.
            candidates: generator, called with the elements of ``key`` but the first if the key is new, of pairs of name
                and function; the one to take without measuring is the first.
            arguments: with which each function may be called, to measure it, any number of times.
        """
        now, allowed, chosen = self._last
        if now is not settings.current() or allowed != chainer.config.use_cudnn:
            now, allowed = settings.current(), chainer.config.use_cudnn
            chosen = self._chosen.setdefault((now, allowed), {})
            self._last = now, allowed, chosen
        function = chosen.get(key)
        if function is None:
            function = chosen[key] = self._known(key, candidates) or self._taken(key, candidates, arguments)
        return function

    def _known(self, key, candidates):
        """Returns the function that was chosen before, or ``None``; nothing is built, and the others never are."""
        cudnn = self._cudnn()
        known = cudnn.known(_text(key))
        if known is None:
            return None
        self._trusting.cudnn = _Trusting(cudnn)
        try:
            return dict(candidates(*key[1:])).get(known)
        finally:
            self._trusting.cudnn = None

    def _taken(self, key, candidates, arguments):
        """Returns the first of the candidates, or the fastest."""
        cudnn, found = self._cudnn(), candidates(*key[1:])
        if not cudnn.measures():
            return next(found)[1]
        found = dict(found)
        calls = [(name, functools.partial(function, *arguments)) for name, function in found.items()]
        return found[cudnn.choose(_text(key), calls)]


@functools.cache
def _say_guess(capability):
    _log.info(
        "sm_%d: how convolutions and batch normalizations are computed is a rule that was measured on an H100 (sm_%d); "
        "cudnn.autotune: measure times the ways on this GPU",
        *(capability, _CAPABILITY_OF_RULES),
    )


def _text(key):
    starts = next(starts for name, starts in _FILES.items() if key[0].startswith(name))
    return f"{' '.join(map(str, key))} [{_digest(starts)}]"


@functools.cache
def _digest(starts):
    """Returns a digest of own kernels and of the code that lists candidates: with others the choice is made anew.

    Args:
        starts: how the names of the files begin; headers count always.
    """
    folders = map(resources.files("mixprec.backends").joinpath, ("cuda", "kernels", "nchw"))
    files = [file for folder in folders for file in folder.iterdir()]
    files = [file for file in files if file.name.endswith(".cuh") or file.name.startswith(starts)]
    contents = b"".join(file.read_bytes() for file in sorted(files, key=str) if file.is_file())
    return hashlib.sha256(contents).hexdigest()[:8]

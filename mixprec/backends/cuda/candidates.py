"""Candidates: several functions for the same computation on a device, and the choice between them.

Convolutions and batch normalizations, here and in :mod:`mixprec.backends.nchw`, choose one for each shape. A generator
yields the candidates, beginning with the default: without measuring the others are never built.

Some defaults are rules: own kernels for batch normalizations, sums inside convolutions, first convolutions on
squares. On an H100 these won wherever it made a difference (benchmarks/results/2026-11-26-profile-h100.json, and
-autotuned.json: 41.5 and 36.0 ms a step). On such a GPU there are no other candidates, on other GPUs the rule is a
guess.
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
# The files (prefixes of names) that determine the speed of a candidate, by prefixes of keys.
_FILES = {
    "batch_norm": ("batch_norm",),
    "conv": ("batch_norm", "channels", "convolution", "stem"),
    "plain conv": ("batch_norm_planes", "bias", "convolution", "planes"),
}
_log = logging.getLogger("mixprec")


class WithoutCudnn:
    """A substitute for :class:`~mixprec.backends.cudnn.context.CudnnContext` without cuDNN: errors state the reason.

    Args:
        reason: one line with the missing package and instructions.

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
    """A substitute for a plan of a candidate that may never be chosen: it is built by its first run.

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
    """A substitute for a :class:`~mixprec.backends.cudnn.context.CudnnContext` if the choice is known: builds nothing.

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
    """Lists the candidates for a computation once for each key, and chooses one."""

    def __init__(self, launcher, cudnn, matrices=None):
        super().__init__(launcher, cudnn, matrices)
        self._chosen = {}  # dicts of functions by what else they depend on: settings, and whether cuDNN is allowed
        self._last = None, None, None  # these, of the last call
        self._trusting = threading.local()  # set in a thread while it lists the candidates for a known choice

    def _cudnn(self):
        """Returns the device's :class:`~mixprec.backends.cudnn.context.CudnnContext`, or its substitute."""
        if chainer.config.use_cudnn == "never":
            return _NEVER
        return getattr(self._trusting, "cudnn", None) or self.cudnn

    def _is_ruled(self):
        """Whether rules decide on this device, so that there are no other candidates."""
        capability = self._cudnn().capability
        if capability not in (None, _CAPABILITY_OF_RULES) and not self._cudnn().measures():
            _say_guess(capability)
        return capability == _CAPABILITY_OF_RULES

    def _by_rule(self, first, others):
        """Yields candidates, beginning with those by rule; if rules decide and there are any, only those.

        Args:
            first: iterable of candidates by rule.
            others: iterable of the others.
        """
        is_alone = False
        for candidate in first:
            is_alone = self._is_ruled()
            yield candidate
        if not is_alone:
            yield from others

    def _is_listed(self):
        """Whether candidates are only listed to find a known choice, so that none is built."""
        return getattr(self._trusting, "cudnn", None) is not None

    def _choose(self, key, candidates, arguments):
        """Returns the function to call.

        Args:
            key: the computation, with everything that the candidates and their speed depend on.
            candidates: generator of pairs of name and function, the default first; for a new key it is called with the
                elements of ``key`` except the first.
            arguments: arguments for measuring a function, which may be called any number of times.
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
        """Returns the function that was chosen before, or ``None``; nothing else is built."""
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
        "sm_%d: convolutions and batch normalizations are computed by rules that were measured on an H100 (sm_%d); "
        "cudnn.autotune: measure times the alternatives on this GPU",
        *(capability, _CAPABILITY_OF_RULES),
    )


def _text(key):
    starts = next(starts for name, starts in _FILES.items() if key[0].startswith(name))
    return f"{' '.join(map(str, key))} [{_digest(starts)}]"


@functools.cache
def _digest(starts):
    """Returns a digest of own kernels and of the code that lists candidates: if it changes, the choice is made again.

    Args:
        starts: prefixes of the names of the files; headers are always included.
    """
    folders = map(resources.files("mixprec.backends").joinpath, ("cuda", "kernels", "nchw"))
    files = [file for folder in folders for file in folder.iterdir()]
    files = [file for file in files if file.name.endswith(".cuh") or file.name.startswith(starts)]
    contents = b"".join(file.read_bytes() for file in sorted(files, key=str) if file.is_file())
    return hashlib.sha256(contents).hexdigest()[:8]

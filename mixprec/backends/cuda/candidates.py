"""Candidates: several functions that compute the same on a device, and the choice between them.

Convolutions and batch normalizations, here and in :mod:`mixprec.backends.nchw`, choose one for each shape.
"""

import functools
import hashlib
import threading
from importlib import resources

import chainer

from mixprec.backends.cuda.base import Base
from mixprec.backends.cudnn import settings
from mixprec.backends.cudnn.library import CudnnMissing


class WithoutCudnn:
    """Without cuDNN in place of :class:`~mixprec.backends.cudnn.context.CudnnContext`: supports nothing, and says why.

    Args:
        reason: one line with what is missing and what to do.
    """

    def __init__(self, reason):
        self._reason = reason

    def supports(self, operation):
        """Returns ``False``."""
        return False

    def plan(self, operation):
        """Raises :class:`~mixprec.backends.cudnn.library.CudnnMissing`."""
        raise CudnnMissing(f"{operation} is computed by cuDNN: {self._reason}")

    def plans(self):
        """Returns an empty list."""
        return []

    def known(self, key):
        """Returns ``None``."""

    def choose(self, key, candidates):
        """Returns the name of the first."""
        return candidates[0][0]


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

    def _choose(self, key, candidates, arguments):
        """Returns the function to call.

        Args:
            key: what is to be computed: everything that the candidates and their speed depend on.
            candidates: called with the elements of ``key`` but the first, if the key is new; returns pairs of name and
                function, the one to take without measuring first.
            arguments: with which each function may be called, to measure it, any number of times.
        """
        now, allowed, chosen = self._last
        if now is not settings.current() or allowed != chainer.config.use_cudnn:
            now, allowed = settings.current(), chainer.config.use_cudnn
            chosen = self._chosen.setdefault((now, allowed), {})
            self._last = now, allowed, chosen
        function = chosen.get(key)
        if function is None:
            function = chosen[key] = self._known(key, candidates) or self._measured(key, candidates, arguments)
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

    def _measured(self, key, candidates, arguments):
        found = candidates(*key[1:])
        calls = [(name, functools.partial(function, *arguments)) for name, function in found]
        return dict(found)[self._cudnn().choose(_text(key), calls)]


def _text(key):
    return f"{' '.join(map(str, key))} [{_code()}]"


@functools.cache
def _code():
    """Returns a digest of own kernels and of the code that lists candidates: with others the choice is made anew."""
    folders = map(resources.files("mixprec.backends").joinpath, ("cuda", "kernels", "nchw"))
    files = [file for folder in folders for file in folder.iterdir() if file.name.endswith((".py", ".cu", ".cuh"))]
    contents = b"".join(file.read_bytes() for file in sorted(files, key=str))
    return hashlib.sha256(contents).hexdigest()[:8]

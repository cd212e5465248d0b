"""Several ways to compute the same, and the choice between them."""

import functools
import hashlib
import threading
from importlib import resources

import chainer

from mixprec.backends.cuda.base import Base
from mixprec.backends.cudnn import settings
from mixprec.backends.cudnn.library import CudnnMissing


class WithoutCudnn:
    """In place of :class:`~mixprec.backends.cudnn.dnn.Dnn` where there is none: supports nothing, and says why.

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


class _Lazy:
    """In place of a plan, for a way that may never be taken: it is built by its first run.

    Args:
        dnn: :class:`~mixprec.backends.cudnn.dnn.Dnn`.
        operation: :class:`~mixprec.backends.cudnn.operation.Operation`.
    """

    def __init__(self, dnn, operation):
        self._dnn, self.operation = dnn, operation

    def run(self, *addresses):
        self.run = self._dnn.plan(self.operation).run
        self.run(*addresses)


class _Trusting:
    """In place of a :class:`~mixprec.backends.cudnn.dnn.Dnn` where the choice is known: nothing is built to find out.

    Args:
        dnn: the :class:`~mixprec.backends.cudnn.dnn.Dnn`.
    """

    def __init__(self, dnn):
        self._dnn = dnn

    def supports(self, operation):
        return True

    def plan(self, operation):
        return _Lazy(self._dnn, operation)


_NEVER = WithoutCudnn("chainer.config.use_cudnn is 'never'; set it to 'auto'")


class Ways(Base):
    """Finds the ways to compute something once for each key, and the one to take."""

    def __init__(self, launcher, dnn):
        super().__init__(launcher, dnn)
        self._ways = {}  # dicts of ways by what else they depend on: settings, and whether cuDNN is allowed
        self._last = None, None, None  # these, of the last call
        self._trusting = threading.local()  # set in a thread while it lists the ways to something that is known

    def _cudnn(self):
        """Returns the device's :class:`~mixprec.backends.cudnn.dnn.Dnn`, or what stands in for it."""
        if chainer.config.use_cudnn == "never":
            return _NEVER
        return getattr(self._trusting, "dnn", None) or self.dnn

    def _way(self, key, find, arguments):
        """Returns the way to take.

        Args:
            key: what is to be computed: everything that ``find`` and the speed depend on.
            find: called with the elements of ``key`` but the first, if the key is new; returns pairs of name and
                function, the one to take without measuring first.
            arguments: with which each function may be called, to measure it, any number of times.
        """
        now, allowed, ways = self._last
        if now is not settings.current() or allowed != chainer.config.use_cudnn:
            now, allowed = settings.current(), chainer.config.use_cudnn
            ways = self._ways.setdefault((now, allowed), {})
            self._last = now, allowed, ways
        way = ways.get(key)
        if way is None:
            way = ways[key] = self._known_way(key, find) or self._chosen_way(key, find, arguments)
        return way

    def _known_way(self, key, find):
        """Returns the way that was chosen before, or ``None``; nothing is built, and what was not chosen never is."""
        cudnn = self._cudnn()
        known = cudnn.known(_text(key))
        if known is None:
            return None
        self._trusting.dnn = _Trusting(cudnn)
        try:
            return dict(find(*key[1:])).get(known)
        finally:
            self._trusting.dnn = None

    def _chosen_way(self, key, find, arguments):
        found = find(*key[1:])
        candidates = [(name, functools.partial(function, *arguments)) for name, function in found]
        return dict(found)[self._cudnn().choose(_text(key), candidates)]


def _text(key):
    return f"{' '.join(map(str, key))} [{_code()}]"


@functools.cache
def _code():
    """Returns a digest of the own kernels and of what lists the ways: with others, what was chosen is chosen anew."""
    folders = map(resources.files("mixprec.backends").joinpath, ("cuda", "kernels", "nchw"))
    files = [file for folder in folders for file in folder.iterdir() if file.name.endswith((".py", ".cu", ".cuh"))]
    contents = b"".join(file.read_bytes() for file in sorted(files, key=str))
    return hashlib.sha256(contents).hexdigest()[:8]

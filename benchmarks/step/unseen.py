"""Functions of Chainer whose launches a stand-in for a device does not see."""

import collections
import contextlib
import functools

import chainer

# Functions of Chainer that ask for the same functions of arrays on a GPU and on the stand-in: arithmetic, and views.
_THE_SAME = ("chainer.functions.math.basic_math", "chainer.functions.array.reshape")


@contextlib.contextmanager
def chainers_own():
    """Counts, in the counter of names that it gives, applications of functions of Chainer that cannot be seen.

    Hooks would do that, too, but where there are hooks nothing is fused.
    """
    names = collections.Counter()
    original = chainer.FunctionNode._check_data_type_forward  # which each application calls

    @functools.wraps(original)
    def check(self, arrays):
        cls = type(self.function) if isinstance(self, chainer.function.FunctionAdapter) else type(self)
        if cls.__module__.startswith("chainer.") and cls.__module__ not in _THE_SAME:
            names[cls.__name__] += 1
        original(self, arrays)

    chainer.FunctionNode._check_data_type_forward = check
    try:
        yield names
    finally:
        chainer.FunctionNode._check_data_type_forward = original

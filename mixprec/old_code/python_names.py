"""Names that Python itself has removed between 3.7 and 3.11, as far as numerical code of that time used them."""

import collections.abc
import fractions
import inspect
import math
import time

_ArgSpec = collections.namedtuple("ArgSpec", "args varargs keywords defaults")


def names():
    """Returns ``{module: {name: its meaning}}``."""
    abstract = {name: getattr(collections.abc, name) for name in collections.abc.__all__}
    return {
        collections: abstract,
        fractions: {"gcd": math.gcd},
        inspect: {"getargspec": lambda function: _ArgSpec(*inspect.getfullargspec(function)[:4])},
        time: {"clock": time.perf_counter},
    }


def put_back():
    """Adds each missing name to its module."""
    for module, values in names().items():
        for name, value in values.items():
            vars(module).setdefault(name, value)

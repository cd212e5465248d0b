"""The environment variables of mixprec, and their allowed values. An empty variable counts as not set."""

import os
import sys
from typing import NamedTuple

from mixprec.base.messages import OneLineError, one_line

_PREFIX = "MIXPREC_"


class Variable(NamedTuple):
    """An environment variable.

    Attributes:
        allowed: tuple of str; the first is the default.
        about: its purpose, for the report of ``mixprec info``.
    """

    allowed: tuple
    about: str


VARIABLES = {
    f"{_PREFIX}NATIVE": Variable(("1", "0", "avx2", "avx512", "avx512bf16"), "the native library, its instructions"),
    f"{_PREFIX}CUDNN": Variable(("1", "0"), "cuDNN 9 for plain Chainer"),
    f"{_PREFIX}OLD_CODE": Variable(("0", "1"), "names for old code that NumPy and Python have removed"),
}

MONITOR_TOKEN = f"{_PREFIX}MONITOR_TOKEN"  # any text, for mixprec.app.monitor.access_token; it is never shown


class VariableError(OneLineError):
    """A variable has a value that is not allowed; the message is one line."""


def value(name):
    """Returns the value of one of :data:`VARIABLES`.

    Raises:
        VariableError: the value is not allowed.
    """
    allowed = VARIABLES[name].allowed
    found = os.environ.get(name) or allowed[0]
    if found not in allowed:
        raise VariableError(
            f"{name}={found}: allowed: {', '.join(allowed[:-1])} or {allowed[-1]}; default: {allowed[0]}"
        )
    return found


def check():
    """Raises :class:`VariableError` if a variable has an invalid value; called when Chainer is imported."""
    for name in VARIABLES:
        value(name)


def check_for_command():
    """For the top of a script: ends the process with one line and exit code 2 if a variable has an invalid value."""
    try:
        check()
    except VariableError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def described():
    """Returns the variables that are set, a list of ``"NAME=VALUE (purpose)"``; unknown names are marked."""
    found = []
    for name in sorted(name for name in os.environ if name.startswith(_PREFIX) and os.environ[name]):
        if name == MONITOR_TOKEN:
            found.append(f"{name} is set (it opens the pages of the monitor)")
            continue
        known = VARIABLES.get(name)
        about = known.about if known else "mixprec has no such variable"
        found.append(one_line(f"{name}={os.environ[name]} ({about})"))
    return found

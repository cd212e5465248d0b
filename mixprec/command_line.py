"""What the commands behind the scripts have in common."""

import argparse
import sys

from mixprec.messages import one_line

__all__ = ["Parser", "one_line"]


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line on standard error, with exit code 2."""

    def error(self, message):
        """Prints the message and exits."""
        print(f"error: {one_line(message)} (see --help)", file=sys.stderr)
        raise SystemExit(2)

"""What the commands behind the scripts have in common."""

import argparse
import sys


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line on standard error, with exit code 2."""

    def error(self, message):
        """Prints the message and exits."""
        print(f"error: {message} (see --help)", file=sys.stderr)
        raise SystemExit(2)

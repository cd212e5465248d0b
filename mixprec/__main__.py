"""``python -m mixprec`` prints what this machine offers, and all that mixprec replaces in Chainer."""

import sys

from mixprec.app.commands import command_process
from mixprec.base import interruption, standard_streams

if __name__ == "__main__":  # before the seconds that the imports below take; the report names wrong variables itself
    standard_streams.guard()
    interruption.end_quietly()

from mixprec.app.parts import environment


def main():
    """Prints both."""
    print(environment.report())
    try:
        from mixprec import patches
    except Exception as error:  # of Chainer, which the report above has named
        print(f"\nThe list of all that mixprec replaces needs Chainer: {error}")
    else:
        print(f"\n{patches.report()}")


if __name__ == "__main__":
    sys.exit(command_process.run(main))

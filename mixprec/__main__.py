"""``python -m mixprec`` prints what this machine offers, and all that mixprec replaces in Chainer."""

import sys

from mixprec import command_process

if __name__ == "__main__":
    command_process.begin()  # before the seconds that the imports below take

from mixprec import environment


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

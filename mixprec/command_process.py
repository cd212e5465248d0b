"""A command as a process: how it begins and how it ends, whatever happens to its output, and when Ctrl-C is pressed."""

from mixprec import interruption, standard_streams


def begin():
    """To be called at the top of a script, before it opens a file and before the seconds that its imports take."""
    standard_streams.guard()
    interruption.end_quietly()


def run(main):
    """Calls the main function of a script, and returns the exit code; after Ctrl-C 130, with one line."""
    return standard_streams.run(lambda: interruption.run(main))

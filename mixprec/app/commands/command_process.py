"""A command as a process: how it begins and ends, with any environment and output, and after Ctrl-C."""

from mixprec.base import interruption, standard_streams, variables
from mixprec.distributed import launched


def begin(*, is_rank=False, checks_variables=True):
    """To be called at the top of a script, before it opens a file and before the seconds that its imports take.

    Args:
        is_rank: whether the command trains in several processes if a launcher of MPI has started several: all end if
            one does before they have found each other.
        checks_variables: whether an environment variable of mixprec with a value that is not allowed ends the process.

    Raises:
        SystemExit: an environment variable of mixprec has no allowed value; one line says so, and the exit code is 2.
    """
    standard_streams.guard()
    interruption.end_quietly()
    if is_rank:
        launched.end_all_at_exit()
    if checks_variables:
        variables.check_for_command()


def run(main):
    """Calls the main function of a script, and returns the exit code; after Ctrl-C 130, with one line."""
    return standard_streams.run(lambda: interruption.run(main))

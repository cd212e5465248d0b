"""Duplicates of MPI's communicators, so that messages of different parts of mixprec do not mix.

Each user of MPI requests one: sums of gradients, batch normalizations, the training command. MPI libraries limit their
number, MPICH to 2,048 for a process, and all processes would have to free one together: they are never freed.
"""

_duplicates = {}  # identity of a communicator, use -> communicator, duplicate
_lent = {}  # identity of a communicator -> communicator, its duplicates, numbers of those that are free on this process


def duplicate(comm, use):
    """Returns the duplicate of a communicator for one use, the same one each time.

    Args:
        comm: ``mpi4py.MPI.Intracomm``. All of its processes ask for the first time together.
        use: name of what sends messages.
    """
    key = id(comm), use  # mpi4py's communicators have no hash
    if key not in _duplicates:
        _duplicates[key] = comm, comm.Dup()
    return _duplicates[key][1]


def lend(comm):
    """Returns a duplicate that only the caller uses, and a function to give it back.

    A process gives it back when it has no pending message there. If one process never does, because a step has failed,
    no process can use it again.

    Args:
        comm: ``mpi4py.MPI.Intracomm``. All of its processes ask together.

    Returns:
        The duplicate, and a callable without arguments.
    """
    _, duplicates, free = _lent.setdefault(id(comm), (comm, [], set()))
    free_everywhere = set.intersection(*comm.allgather(free))
    number = min(free_everywhere, default=len(duplicates))
    free.discard(number)
    if number == len(duplicates):
        duplicates.append(comm.Dup())
    return duplicates[number], lambda: free.add(number)

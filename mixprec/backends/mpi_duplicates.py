"""Duplicates of MPI's communicators, so that messages of one part of mixprec do not meet those of another one.

Whatever sends by MPI asks for one: sums of gradients, batch normalizations, the training command.
"""

_duplicates = {}  # identity of a communicator, use -> communicator, duplicate


def duplicate(comm, use):
    """Returns the duplicate of a communicator for one use, the same one each time.

    It is kept for ever: all processes would have to free it together. An MPI library has a limited number, MPICH 2,048
    for a process.

    Args:
        comm: ``mpi4py.MPI.Intracomm``. All of its processes ask for the first time together.
        use: name of what sends messages.
    """
    key = id(comm), use  # mpi4py's communicators have no hash
    if key not in _duplicates:
        _duplicates[key] = comm, comm.Dup()
    return _duplicates[key][1]

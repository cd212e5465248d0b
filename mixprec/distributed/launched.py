"""Which of several processes this one is, as the launcher of MPI says it: no other process is asked.

:func:`mixprec.distributed.processes.find` begins with it. Until then others wait in MPI for a process that has ended,
such as one that cannot import something. So the training command ends all of them, see :func:`end_all_at_exit`.
"""

import atexit
import dataclasses
import os
import sys
import time

ARRIVAL = 0.2  # seconds in which the launcher reads what was printed; at an abort it drops the rest

_LAUNCHERS = (  # variables with rank and number of ranks: Open MPI; MPICH, Intel MPI and SLURM's PMI-2; SLURM's PMIx
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ()),
    ("PMI_RANK", "PMI_SIZE", ()),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ("PMIX_RANK",)),  # a batch script has SLURM's variables, and is no rank
)
_LOCAL = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")


@dataclasses.dataclass(frozen=True)
class Place:
    """The place of a process among those that a launcher has started.

    Attributes:
        rank: 0 to size - 1.
        size: number of processes.
        local_rank: 0, 1... among the processes of this machine; 0 if the launcher does not say.
    """

    rank: int
    size: int
    local_rank: int


def place_in(environment):
    """Returns the :class:`Place` that a launcher of MPI has left in environment variables; ``None`` if there is none.

    Example:
        >>> place_in({"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1"})
        Place(rank=3, size=4, local_rank=1)
        >>> place_in({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"})  # the batch script itself
    """
    for rank, size, others in _LAUNCHERS:
        if all(environment.get(name, "").isdigit() for name in (rank, size, *others)):
            local = next((environment[name] for name in _LOCAL if environment.get(name, "").isdigit()), "0")
            return Place(int(environment[rank]), int(environment[size]), int(local))
    return None


def end_all_at_exit():
    """From here on the end of this process, if it is one of several, ends all; until :func:`stay_at_exit`."""
    place = place_in(os.environ)
    if place is not None and place.size > 1:
        atexit.register(_end_all, place.rank)


def stay_at_exit():
    """Takes :func:`end_all_at_exit` back: now something else looks after the others."""
    atexit.unregister(_end_all)


def _end_all(rank):
    try:
        from mpi4py import MPI  # waits until the others have come so far
    except (ImportError, RuntimeError):  # there is no library of MPI
        return
    print(f"rank {rank}: ended before training began; all ranks end", file=sys.stderr, flush=True)
    time.sleep(ARRIVAL)
    has_traceback = getattr(sys, "last_value", None) is not None  # Python prints none for SystemExit
    MPI.COMM_WORLD.Abort(1 if has_traceback else 2)

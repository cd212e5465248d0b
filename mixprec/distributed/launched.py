"""The rank of this process, from the MPI launcher's environment variables, without communication.

:func:`mixprec.distributed.processes.find` starts with it. Before that, other processes would wait in MPI for one that
has ended, for example because of an import error. So the training command ends all of them, see
:func:`end_all_at_exit`.
"""

import atexit
import dataclasses
import os
import sys
import time

ARRIVAL = 0.2  # seconds for the launcher to read the output; at an abort it drops the rest

_LAUNCHERS = (  # variables with rank and number of ranks: Open MPI; MPICH, Intel MPI and SLURM's PMI-2; SLURM's PMIx
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ()),
    ("PMI_RANK", "PMI_SIZE", ()),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ("PMIX_RANK",)),  # a batch script has SLURM's variables, and is not a rank
)
_LOCAL = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")


@dataclasses.dataclass(frozen=True)
class LaunchedRank:
    """The rank of a process that an MPI launcher has started.

    Attributes:
        rank: 0 to size - 1.
        size: number of processes.
        local_rank: 0, 1... among the processes of this machine; 0 if the launcher does not tell.
    """

    rank: int
    size: int
    local_rank: int


def rank_in(environment):
    """Returns the :class:`LaunchedRank` from an MPI launcher's environment variables, or ``None``.

    Example:
        >>> rank_in({"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1"})
        LaunchedRank(rank=3, size=4, local_rank=1)
        >>> rank_in({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"})  # the batch script itself
    """
    for rank, size, others in _LAUNCHERS:
        if all(environment.get(name, "").isdigit() for name in (rank, size, *others)):
            local = next((environment[name] for name in _LOCAL if environment.get(name, "").isdigit()), "0")
            return LaunchedRank(int(environment[rank]), int(environment[size]), int(local))
    return None


def end_all_at_exit():
    """Makes the end of this process end all ranks, if there are several, until :func:`stay_at_exit`."""
    own = rank_in(os.environ)
    if own is not None and own.size > 1:
        atexit.register(_end_all, own.rank)


def stay_at_exit():
    """Undoes :func:`end_all_at_exit`."""
    atexit.unregister(_end_all)


def _end_all(rank):
    try:
        from mpi4py import MPI  # waits until all processes get here
    except (ImportError, RuntimeError):  # there is no MPI library
        return
    print(f"rank {rank}: ended before training began; all ranks end", file=sys.stderr, flush=True)
    time.sleep(ARRIVAL)
    has_traceback = getattr(sys, "last_value", None) is not None  # Python prints none for SystemExit
    MPI.COMM_WORLD.Abort(1 if has_traceback else 2)

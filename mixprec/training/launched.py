"""Which of several processes this one is, as the launcher of MPI says it: no other process is asked.

:func:`mixprec.training.processes.find` begins with it.
"""

import dataclasses

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

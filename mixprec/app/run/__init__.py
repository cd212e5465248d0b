"""A run of the training command: the checks before it, and the run itself.

Reading order. ``training_run`` is a run on one page. It calls ``preparation``, which checks everything that can be
checked before anything is written: ``output`` and ``lock`` (the results folder), ``needs`` and ``timing`` (disk, memory
and time; the dry run). ``rehearsal`` runs on a GPU before the first step; ``surroundings`` describes machine and
versions. ``synthetic_run`` makes the same steps on random numbers, for ``mixprec tune`` and the benchmarks.
"""

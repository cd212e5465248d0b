"""``faulty_rank.py`` on the stand-in for CuPy, with or without the rehearsal, as the first argument says.

Its last line has the numbers of plans that were built, and of operations whose engines were measured, before the
trainer ran and since then.
"""

import sys

from tests.stand_ins import fake_cupy

fake_cupy.install()

import cupy  # noqa: E402
import numpy as np  # noqa: E402
from chainer import training  # noqa: E402

from mixprec.backends import transfers  # noqa: E402
from mixprec.backends.cudnn import context, plans  # noqa: E402
from mixprec.training import rehearsal  # noqa: E402
from tests.training import faulty_rank  # noqa: E402

_counts = {"built": [0, 0], "measured": [0, 0]}
_is_running = False


def _counting(function, kind):
    def counted(*arguments):
        _counts[kind][_is_running] += 1
        return function(*arguments)

    return counted


def _run(run):
    def running(*arguments, **keywords):
        global _is_running
        _is_running = True
        return run(*arguments, **keywords)

    return running


def main(how, *arguments):
    cupy.cuda.runtime.deviceGetPCIBusId = lambda device: "0000:00:00.0"
    transfers._Copied = lambda array: transfers.HostCopy(array.view(np.ndarray))  # there is no pinned memory
    context.CudnnContext._build = _counting(context.CudnnContext._build, "built")
    context.CudnnContext._measured = _counting(context.CudnnContext._measured, "measured")
    plans.search = _counting(plans.search, "measured")
    training.Trainer.run = _run(training.Trainer.run)
    if how == "without":
        rehearsal.rehearse = lambda *arguments: None
    code = faulty_rank.main(*arguments)
    print(", ".join(f"{kind} {before} and {later}" for kind, (before, later) in _counts.items()))
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

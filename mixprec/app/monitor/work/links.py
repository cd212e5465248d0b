"""Links in the folder of a run, which no task follows."""

import contextlib
import os

from mixprec.app.monitor.work.fields import RequestError
from mixprec.base import files


@contextlib.contextmanager
def not_followed(request):
    """Inside the block, links in the folder of a request's run, and on the path to it, are not followed.

    Images, which the config of a run names elsewhere, may be reached through links: these belong to the user.

    Args:
        request: attributes ``run`` or ``config``, which may be missing or ``None``; and ``root``, the folder of results
            that contains the runs. Without ``root``, links on the path to ``run`` are followed, and a ``config`` does
            not belong to a run.

    Raises:
        RequestError: the run does not lie in ``root``.
    """
    root, run, config = (getattr(request, name, None) for name in ("root", "run", "config"))
    with contextlib.ExitStack() as closed:
        if run is not None:
            if root is not None and not _lies_in(run, root):
                raise RequestError(f"'run' is {run}; wanted: a folder in 'root', {root}")
            closed.enter_context(files.closed(run if root is None else root, run))
        if config is not None and root is not None and _lies_in(config, root):
            closed.enter_context(files.closed(root, os.path.dirname(config)))
        yield


def _lies_in(path, root):
    return os.path.abspath(path).startswith(os.path.join(os.path.abspath(root), ""))

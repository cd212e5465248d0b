"""Looks at a new machine with a GPU: one command, one folder with all results, one summary.

python scripts/check_gpu.py [--out DIR] [--stage NAME ...]

Stages: environment (versions, driver, memory), properties (the file from which cuDNN builds plans for this GPU where
there is none), tests (those that need a GPU), bars (2 minutes), profile, images (JPEGs for the next one), train (a
minute of ResNet-50 with DALI). Each has a time limit, and goes on without the others. docs/check-gpu.md says more.

Exit status: 0 if all went well or there is no device, 1 if something failed, 2 for bad arguments, 128 + N after signal
N.
"""

import contextlib
import datetime
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from mixprec import interruption

if __name__ == "__main__":
    interruption.end_quietly()  # before the seconds that the imports below take

from benchmarks.gpu_check import check, summary
from benchmarks.gpu_check import stages as all_stages
from benchmarks.gpu_check.group import Interruption
from mixprec.command_line import Parser, one_line, path

ROOT = pathlib.Path(__file__).resolve().parents[1]


def main(argv=None):
    """Runs the stages.

    Args:
        argv: arguments; ``None`` for those of the process.

    Returns:
        int: exit code.
    """
    parser = Parser(description=__doc__.splitlines()[0], allow_abbrev=False)
    names = ", ".join(stage.name for stage in all_stages.stages(ROOT, ROOT))
    parser.add_argument(
        "--out",
        type=path("a folder"),
        metavar="DIR",
        help="new or empty folder; default: results/check_gpu/<date-time>",
    )
    parser.add_argument(
        "--stage", action="append", default=[], metavar="NAME", help=f"may be repeated; default: all of {names}"
    )
    settings = parser.parse_args(argv)
    now = datetime.datetime.now()
    out = pathlib.Path(settings.out or f"results/check_gpu/{now:%Y%m%d-%H%M%S}").absolute()
    try:
        stages = check.chosen(all_stages.stages(ROOT, out), settings.stage)
    except ValueError as error:
        parser.error(f"--stage: {error}")
    try:
        out.mkdir(parents=True, exist_ok=True)
        used = any(out.iterdir())
    except OSError as error:
        parser.error(f"--out {out}: {error.strerror}")
    if used:
        parser.error(f"--out {out}: not empty; each check has a folder of its own")

    try:
        with Interruption() as interruption:
            results = check.check(stages, all_stages.asking(out), out, root=ROOT, interruption=interruption, say=_say)
    except OSError as error:
        print(f"check_gpu: {one_line(error)}", file=sys.stderr)
        return 1
    bad = [result.name for result in results if result.bad]
    without = any(result.state == summary.NO_DEVICE for result in results)
    verdict = f"not well: {', '.join(bad)}" if bad else "nothing failed"
    _say(f"{verdict}{', but no GPU was looked at' if without else ''}; the summary is {out / summary.TEXT}")
    if interruption.signals:
        return 128 + interruption.signals[0]
    return int(bool(bad))


def _say(line):
    with contextlib.suppress(OSError):  # the terminal is gone; the files say it all
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(interruption.run(main))

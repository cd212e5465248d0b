"""Looks at a machine with a GPU in two calls, 11 minutes, what is worth most first, and brings home one archive.

python scripts/check_gpu.py --budget 190 --out DIR
python scripts/check_gpu.py --budget 450 --out DIR2 --resume DIR/check.tgz

A list of stages, each a command with a limit of its own. After each one `check.tgz` is rewritten; with `--resume` of
that file a later call goes on. Needs Python, NumPy, CuPy, cuDNN and pytest; what else is missing is carried as wheels,
see scripts/carry_wheels.py. docs/check-gpu.md says more.

Exit status: 0 if nothing failed or there is no device, 1 if something failed, 2 for bad arguments, 128 + N after signal
N.
"""

import contextlib
import datetime
import os
import pathlib
import sys
import tempfile
import time

BEGAN = time.monotonic()  # what is imported counts, too
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from mixprec.app.commands import command_process
from mixprec.base import standard_streams, working_folder

if __name__ == "__main__":
    command_process.begin()  # before the seconds that the imports below take

from benchmarks import machine
from benchmarks.gpu_check import archive, check, group, stages, summary, wheels
from mixprec.app.commands.command_line import Parser, amount, first_line, one_line, path
from mixprec.base.archives import Damaged

WHEELS = stages.ROOT / ".whl"
BUDGET = 450.0  # seconds


def main(argv=None):
    """Runs the stages.

    Args:
        argv: arguments; ``None`` for those of the process.

    Returns:
        int: exit code.
    """
    parser = Parser(description=first_line(__doc__), allow_abbrev=False)
    help = "for everything (default: %(default)s)"
    parser.add_argument("--budget", type=amount, default=BUDGET, metavar="SECONDS", help=help)
    help = "check.tgz of a call before: what went well is not run again"
    parser.add_argument("--resume", type=path("a file"), metavar="FILE", help=help)
    named = [stage.name for stage in stages.stages(stages.ROOT) if stage.on_request]
    help = f"also a pattern, such as 'captured-*'; may be repeated; default: all but {', '.join(named)}"
    parser.add_argument("--stage", action="append", default=[], metavar="NAME", help=help)
    help = "of the results; default: results/check_gpu/<date-time>"
    parser.add_argument("--out", type=path("a folder"), metavar="DIR", help=help)
    settings = parser.parse_args(argv)
    try:
        out = settings.out or f"results/check_gpu/{datetime.datetime.now():%Y%m%d-%H%M%S}"
        out = pathlib.Path(working_folder.absolute(out))
    except working_folder.WorkingFolderError as error:
        parser.error(f"--out: {error}")
    former, members = {}, {}
    try:
        check.chosen(stages.stages(stages.ROOT), settings.stage)
    except ValueError as error:
        parser.error(f"--stage: {error}")
    if settings.resume is not None:
        try:
            members = archive.unpacked(settings.resume)
            former = summary.read(members[summary.JSON].decode(errors="replace"))
        except (OSError, ValueError) as error:
            parser.error(f"--resume {settings.resume}: {error}")
    elif os.path.exists(out / archive.NAME):  # of pathlib it is an error where the folder may not be read
        parser.error(f"--out {out}: {archive.NAME} of another check is there; go on with it by --resume")
    former.pop(stages.DEVICE.name, None)  # it may have gone

    with (
        standard_streams.view("the check goes on; its files say it all"),
        group.noting_signals() as signals,
        contextlib.ExitStack() as stack,
    ):
        try:  # what a process that cannot be killed may still hold is left there
            folder = tempfile.TemporaryDirectory(prefix="check_gpu-", ignore_cleanup_errors=True)
        except OSError as error:
            parser.error(f"no temporary folder: {error}")
        scratch = pathlib.Path(stack.enter_context(folder))
        found = machine.record()
        results = check.Check(
            check.chosen(stages.stages(scratch), settings.stage, former),
            BEGAN + settings.budget,
            root=stages.ROOT,
            scratch=scratch,
            environment=prepared(scratch, WHEELS, members),
            keep=archive.Home(out, scratch, found, members, _say).keep,
            signals=signals,
            say=_say,
            former=former,
            date=found["date"],
        ).run()
        return _ended(results, out, signals)


def prepared(scratch, folder, members):
    """Unpacks wheels and the members of a former archive into a folder; returns the variables of stages' processes."""
    site, cache = scratch / "site", scratch / "cache"
    try:
        archive.write_files(scratch, members)
        _say(f"from {folder}: {', '.join(wheels.unpack(folder, site)) or 'nothing'}")
    except (OSError, Damaged) as error:
        _say(f"check_gpu: {one_line(error)}; the check goes on without")
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(stages.ROOT), str(site), os.environ.get("PYTHONPATH")))),
        "XDG_CACHE_HOME": str(cache),
        "CUPY_CACHE_DIR": str(cache / "cupy"),
        "CUDA_CACHE_PATH": str(scratch / "cuda"),
        "MPLCONFIGDIR": str(scratch / "matplotlib"),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(scratch / "hypothesis"),
    }


def _ended(results, out, signals):
    """Says in the end once more what was found: where output is cut, that is what is left. Returns the exit status."""
    _say("== in short")
    for result in results:
        if result.quotes or result.bad:
            found = [result.note] * result.bad + result.quotes
            _say(summary.cut(f"{result.name}: {result.state}: {'; '.join(found)}"))
    bad = [result.name for result in results if result.bad]
    later = [result.name for result in results if result.state == summary.NOT_BEGUN]
    verdict = f"not well: {', '.join(bad)}" if bad else "nothing failed"
    if any(result.state == summary.NO_DEVICE for result in results):
        verdict += ", but no GPU was looked at"
    if later:
        verdict += f"; no time for {', '.join(later)}: go on by --resume"
    _say(f"{verdict}; all is in {out / archive.NAME}")
    return 128 + signals[0] if signals else int(bool(bad))


def _say(line):
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(command_process.run(main))

"""Looks at a new machine with a GPU within minutes, what is worth most first, and brings home one archive.

python scripts/check_gpu.py [--budget SECONDS] [--resume FILE] [--stage NAME ...] [--out DIR] [--wheels DIR]
    [--scratch DIR]

Stages, each with a limit of its own: environment, smoke (six checks), the file from which cuDNN builds plans for this
GPU where there is none, images/s with everything on at batch 256 and 32, a profile, PyTorch, images/s with autotuning,
the tests that need a GPU, training. After each one `check.tgz` is rewritten; with `--resume` of that file a later call
goes on. Needs Python, NumPy, CuPy, cuDNN and pytest; what else is missing is carried as wheels, see
scripts/carry_wheels.py. docs/check-gpu.md says more.

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
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from mixprec import interruption

if __name__ == "__main__":
    interruption.end_quietly()  # before the seconds that the imports below take

from benchmarks import machine
from benchmarks.command_arguments import amount
from benchmarks.gpu_check import archive, check, home, stage_summary, wheels
from benchmarks.gpu_check import stages as all_stages
from benchmarks.gpu_check.group import Interruption
from mixprec.command_line import Parser, one_line, path

ROOT = pathlib.Path(__file__).resolve().parents[1]
WHEELS = ROOT / ".whl"
BUDGET = 540.0  # seconds


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
        "--budget", type=amount, default=BUDGET, metavar="SECONDS", help="for everything (default: %(default)s)"
    )
    parser.add_argument(
        "--resume",
        type=path("a file"),
        metavar="FILE",
        help="check.tgz or stage_summary.json: what went well is not run again",
    )
    parser.add_argument(
        "--stage",
        action="append",
        default=[],
        metavar="NAME",
        help=f"also a pattern, such as 'tuned-*'; may be repeated; default: all of {names}",
    )
    parser.add_argument(
        "--out", type=path("a folder"), metavar="DIR", help="of the results; default: results/check_gpu/<date-time>"
    )
    help = "wheels of packages that may be missing here (default: .whl in the checkout)"
    parser.add_argument("--wheels", type=path("a folder"), default=WHEELS, metavar="DIR", help=help)
    help = "for all other files, which stay there (default: a temporary folder)"
    parser.add_argument("--scratch", type=path("a folder"), metavar="DIR", help=help)
    end = time.monotonic()
    settings = parser.parse_args(argv)
    end += settings.budget
    now = datetime.datetime.now()
    out = pathlib.Path(settings.out or f"results/check_gpu/{now:%Y%m%d-%H%M%S}").absolute()
    former, members = {}, {}
    try:
        check.chosen(all_stages.stages(ROOT, ROOT), settings.stage)
    except ValueError as error:
        parser.error(f"--stage: {error}")
    if settings.resume is not None:
        try:
            former, members = _former(settings.resume)
        except (OSError, ValueError) as error:
            parser.error(f"--resume {settings.resume}: {error}")
    elif used := next((name for name in (archive.NAME, stage_summary.JSON) if (out / name).exists()), None):
        parser.error(f"--out {out}: {used} of another check is there; go on with it by --resume, or choose another")

    with Interruption() as interruption, contextlib.ExitStack() as stack:
        try:
            if settings.scratch is None:
                scratch = pathlib.Path(
                    stack.enter_context(tempfile.TemporaryDirectory(prefix="check_gpu-", **_QUIETLY))
                )
            else:
                scratch = pathlib.Path(settings.scratch).absolute()
                scratch.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            parser.error(f"--scratch: {error}")
        return _check(settings, end, out, scratch, former, members, interruption)


_QUIETLY = {"ignore_cleanup_errors": True}  # of what a process that cannot be killed may still hold


def _check(settings, end, out, scratch, former, members, interruption):
    environment = _prepared(scratch, pathlib.Path(settings.wheels), members)
    found = machine.record()
    keep = home.Home(out, scratch, found, members, _say).keep
    run = check.Check(
        check.chosen(all_stages.stages(ROOT, scratch), settings.stage, former),
        all_stages.asking(),
        end,
        root=ROOT,
        scratch=scratch,
        environment=environment,
        keep=keep,
        interruption=interruption,
        say=_say,
        former=former,
        date=found["date"],
    )
    results = run.run()
    bad = [result.name for result in results if result.bad]
    later = [result.name for result in results if result.state == stage_summary.NOT_BEGUN]
    verdict = [f"not well: {', '.join(bad)}" if bad else "nothing failed"]
    if any(result.state == stage_summary.NO_DEVICE for result in results):
        verdict[0] += ", but no GPU was looked at"
    if later:
        verdict.append(f"no time for {', '.join(later)}: go on by --resume")
    _say("== in short")  # once more: where output is cut, its end is what is left
    for line in stage_summary.in_short(results):
        _say(line)
    _say(f"{'; '.join(verdict)}; all is in {out / archive.NAME}")
    if interruption.signals:
        return 128 + interruption.signals[0]
    return int(bool(bad))


def _former(name):
    """Returns the results of a former check by name, and the members of its archive."""
    if not name.endswith(".json"):
        members = archive.unpacked(name)
        if stage_summary.JSON not in members:
            raise ValueError(f"no archive of a check: it has no {stage_summary.JSON}")
        return stage_summary.read(members[stage_summary.JSON].decode(errors="replace")), members
    return stage_summary.read(pathlib.Path(name).read_text(encoding="utf-8", errors="replace")), {}


def _prepared(scratch, folder, members):
    """Unpacks wheels and what a former check has left; returns the variables of the stages' processes."""
    site, cache = scratch / "site", scratch / "cache"
    wanted = {name: data for name, data in members.items() if "/" in name}
    try:
        archive.write_files(scratch, wanted)
        taken, left = wheels.unpack(folder, site)
        _say(f"from {folder}: {', '.join(taken) or 'nothing'}")
        for line in left:
            _say(f"    cannot be used: {line}")
    except (OSError, zipfile.BadZipFile) as error:
        _say(f"check_gpu: {one_line(error)}; the check goes on without")
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), str(site), os.environ.get("PYTHONPATH")))),
        "XDG_CACHE_HOME": str(cache),
        "CUPY_CACHE_DIR": str(cache / "cupy"),
        "CUDA_CACHE_PATH": str(scratch / "cuda"),
        "MPLCONFIGDIR": str(scratch / "matplotlib"),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(scratch / "hypothesis"),
    }


def _say(line):
    with contextlib.suppress(OSError):  # the terminal is gone; the files say it all
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(interruption.run(main))

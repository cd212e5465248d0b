"""What is known of each stage, as JSON and as text; the files are whole at any time."""

import dataclasses
import json

from mixprec import files

FORMAT = "mixprec check_gpu 1"
JSON, TEXT = "summary.json", "summary.txt"

WAITING, RUNNING, INTERRUPTED = "waiting", "running", "interrupted"
OK, FAILED, TIMED_OUT, NO_DEVICE, SKIPPED = "ok", "failed", "timed out", "no device", "skipped"


@dataclasses.dataclass
class Result:
    """What is known of a stage.

    Attributes:
        name: of the stage.
        command: its words.
        limit: seconds that it may take.
        state: one of the states of this module.
        seconds: that it took; ``None`` if it has not run.
        status: exit status, -N after signal N; ``None`` if there is none.
        note: why it did not run, or what went wrong.
        quotes: lines about its results.
        log: file with all its output, relative to the folder; ``None`` if it has not run.
    """

    name: str
    command: list
    limit: float
    state: str = WAITING
    seconds: float | None = None
    status: int | None = None
    note: str = ""
    quotes: list = dataclasses.field(default_factory=list)
    log: str | None = None

    @property
    def bad(self):
        """Whether something is wrong; a stage that found no device is not wrong."""
        return self.state in (FAILED, TIMED_OUT, INTERRUPTED)


def write(out, machine, results, *, complete):
    """Writes both files.

    Args:
        out: their folder, a path.
        machine: dict from :func:`benchmarks.machine.record`.
        results: list of :class:`Result`.
        complete: whether no more is to come.
    """
    stages = [dataclasses.asdict(result) for result in results]
    record = {"format": FORMAT, "complete": complete, **machine, "stages": stages}
    files.write_text(out / JSON, json.dumps(record, indent=2) + "\n")
    files.write_text(out / TEXT, text(machine, results))


def text(machine, results):
    """Returns the summary for humans."""
    lines = [
        f"check of a GPU machine, {machine['date']}",
        f"mixprec {machine['mixprec']} at commit {machine['commit'] or 'unknown'}, Python {machine['python']}",
        machine["cpu"],
        "",
    ]
    for result in results:
        seconds = "" if result.seconds is None else f"{result.seconds:.1f} s"
        lines.append(f"{result.name:13}{result.state:13}{seconds:>9}  {result.note}".rstrip())
        lines += [f"    {line}" for line in result.quotes]
        if result.bad and result.log:
            lines.append(f"    see {result.log}")
    return "\n".join([*lines, ""])

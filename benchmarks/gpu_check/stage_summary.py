"""The summary of all stages, as JSON and as text."""

import dataclasses
import json

from benchmarks.gpu_check.quotes import cut

FORMAT = "mixprec check_gpu 2"
JSON, TEXT = "summary.json", "summary.txt"

WAITING, RUNNING, INTERRUPTED, NOT_BEGUN = "waiting", "running", "interrupted", "not begun"
OK, FAILED, TIMED_OUT, NO_DEVICE, SKIPPED = "ok", "failed", "timed out", "no device", "skipped"


@dataclasses.dataclass
class Result:
    """What is known of a stage.

    Attributes:
        name: of the stage.
        command: its words.
        limit: seconds that it may take, and after it has begun, that it was allowed to take.
        state: one of the states of this module.
        seconds: that it took; ``None`` if it has not run.
        status: exit status, -N after signal N; ``None`` if there is none.
        note: why it did not run, or what went wrong.
        quotes: lines about its results.
        log: file with its output in the archive; ``None`` if it has not run.
        date: of the check in which it ran.
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
    date: str = ""

    @property
    def bad(self):
        """Whether something is wrong; a stage that found no device, or no time, is not wrong."""
        return self.state in (FAILED, TIMED_OUT, INTERRUPTED)


def as_json(machine, results, *, complete):
    """Returns the summary for programs, as text.

    Args:
        machine: dict from :func:`benchmarks.machine.record`.
        results: list of :class:`Result`.
        complete: whether no more is to come in this check.
    """
    stages = [dataclasses.asdict(result) for result in results]
    return json.dumps({"format": FORMAT, "complete": complete, **machine, "stages": stages}, indent=2) + "\n"


def read(text):
    """Returns the stages that went well in a summary as a dict from names to :class:`Result`.

    Raises:
        ValueError: it is no summary of a check.
    """
    try:
        record = json.loads(text)
        if record["format"] != FORMAT:
            raise ValueError(f"format: found {record['format']!r}, expected {FORMAT!r}")
        results = [Result(**stage) for stage in record["stages"]]
    except (LookupError, TypeError) as error:
        raise ValueError(f"no summary of a check: {type(error).__name__}: {error}") from None
    return {result.name: result for result in results if result.state == OK}


def in_short(results):
    """Returns a line for each stage that has found something, or has gone wrong: all that is left of a lost archive."""
    lines = []
    for result in results:
        if result.quotes or result.bad:
            found = [result.note, *result.quotes] if result.bad else result.quotes
            lines.append(cut(" ".join(f"{result.name}: {result.state}: {'; '.join(found)}".split())))
    return lines


def as_text(machine, results):
    """Returns the summary for humans; arguments as of :func:`as_json`."""
    lines = [
        f"check of a GPU machine, {machine['date']}",
        f"mixprec {machine['mixprec'] or 'of a checkout'} at commit {machine['commit'] or 'unknown'}, "
        f"Python {machine['python']}",
        machine["cpu"],
        "",
    ]
    for result in results:
        seconds = "" if result.seconds is None else f"{result.seconds:.1f} s"
        former = f"in the check of {result.date}" if result.date not in ("", machine["date"]) else ""
        note = "; ".join(filter(None, (result.note, former)))
        lines.append(f"{result.name:18}{result.state:13}{seconds:>9}  {note}".rstrip())
        lines += [f"    {line}" for line in result.quotes]
        if result.bad and result.log:
            lines.append(f"    see {result.log}")
    return "\n".join([*lines, ""])

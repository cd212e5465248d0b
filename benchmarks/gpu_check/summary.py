"""The results of all stages, and their summary as JSON and as text."""

import dataclasses
import json

FORMAT = "mixprec check_gpu 3"
JSON, TEXT = "summary.json", "summary.txt"
WAITING, RUNNING, OK, FAILED, TIMED_OUT = "waiting", "running", "ok", "failed", "timed out"
NO_DEVICE, SKIPPED, INTERRUPTED, NOT_BEGUN = "no device", "skipped", "interrupted", "not begun"
_WIDTH = 240  # characters of a line: with it the reason of a row says how far it had come


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
    date: str = ""

    @property
    def bad(self):
        """Whether something is wrong; a stage that found no device, or no time, is not wrong."""
        return self.state in (FAILED, TIMED_OUT, INTERRUPTED)

    def lines(self, date):
        """Returns what a check of that date says of it, a line and its quotes."""
        seconds = "" if self.seconds is None else f"{self.seconds:.1f} s"
        former = f"in the check of {self.date}" if self.date not in ("", date) else ""
        note = "; ".join(filter(None, (self.note, former)))
        return [f"{self.name:18}{self.state:13}{seconds:>9}  {note}".rstrip(), *(f"    {line}" for line in self.quotes)]


def cut(line):
    """Returns a line of a length that suits a summary."""
    line = " ".join(line.split())
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..."


def as_json(machine, results, *, complete):
    """Returns the summary for programs, as text; ``machine`` is :func:`benchmarks.machine.record`."""
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


def as_text(machine, results):
    """Returns the summary for humans; arguments as of :func:`as_json`."""
    lines = [
        f"check of a GPU machine, {machine['date']}",
        f"mixprec {machine['mixprec'] or 'of a checkout'} at commit {machine['commit'] or 'unknown'}, "
        f"Python {machine['python']}, {machine['cpu']}",
        "",
    ]
    return "\n".join([*lines, *(line for result in results for line in result.lines(machine["date"])), ""])

"""Runs the stages one after the other, and keeps the summary up to date."""

import json
import signal

from benchmarks import machine
from benchmarks.gpu_check import device, group, quotes, summary

_QUOTE_ERRORS = (OSError, ValueError, LookupError, TypeError)  # of files that are not what a stage should have made


def chosen(stages, names):
    """Returns the stages with these names and those without which they cannot run, in order; all if there are none.

    Args:
        stages: list of :class:`~benchmarks.gpu_check.stages.Stage`.
        names: some of their names.

    Raises:
        ValueError: a name is none of theirs.
    """
    known = {stage.name: stage for stage in stages}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"found {unknown[0]!r}, expected one of {', '.join(known)}")
    wanted = set(names or known)
    return [stage for stage in stages if stage.name in wanted | {known[name].after for name in wanted}]


def check(stages, asking, out, *, root, interruption, say, grace=15.0):
    """Runs stages, whatever becomes of the others.

    Args:
        stages: list of :class:`~benchmarks.gpu_check.stages.Stage`.
        asking: the one that finds out whether there is a GPU; it runs first, if a stage needs one.
        out: folder of the results, a path; it exists.
        root: working directory of the commands.
        interruption: :class:`~benchmarks.gpu_check.group.Interruption`: after a signal no more is run.
        say: callable that prints a line.
        grace: seconds between SIGTERM and SIGKILL for a stage that is too long.

    Returns:
        list of :class:`~benchmarks.gpu_check.summary.Result`.

    Raises:
        OSError: the summary cannot be written.
    """
    if any(stage.needs_device for stage in stages):
        stages = [asking, *stages]
    results = {stage.name: summary.Result(stage.name, list(stage.command), stage.limit) for stage in stages}
    found = machine.record()

    def write(complete=False):
        summary.write(out, found, list(results.values()), complete=complete)

    for stage in stages:
        result = results[stage.name]
        obstacle = _obstacle(stage, stages, results, asking)
        if interruption.signals:
            result.state, result.note = summary.SKIPPED, "interrupted before"
        elif obstacle is not None:
            result.state, result.note = obstacle
        else:
            result.state = summary.RUNNING
            write()
            say(f"{stage.name}: at most {_duration(stage.limit)} ...")
            _run(stage, result, out, root, interruption, grace)
            if stage is asking:
                _take_answer(result, out)
        write()
        _report(result, out, say)
    write(complete=not interruption.signals)
    return list(results.values())


def _obstacle(stage, stages, results, asking):
    """``(state, note)`` of a stage that cannot run or need not run; ``None`` if it can and must."""
    answer = results.get(asking.name)
    if stage.needs_device and answer.state == summary.NO_DEVICE:
        return summary.NO_DEVICE, answer.note
    if stage.needs_device and answer.state != summary.OK:
        return summary.SKIPPED, f"whether there is a device is not known: {asking.name}: {answer.state}"
    if stage.after is not None and results[stage.after].state != summary.OK:
        return summary.SKIPPED, f"needs {stage.after}: {results[stage.after].state}"
    users = [user for user in stages if user.after == stage.name]
    if users and answer is not None and answer.state != summary.OK and all(user.needs_device for user in users):
        return summary.SKIPPED, f"not needed: {answer.state if answer.state == summary.NO_DEVICE else 'device unknown'}"
    return None


def _run(stage, result, out, root, interruption, grace):
    log, folder = out / f"{stage.name}.log", out / stage.name
    result.log = log.name
    try:
        folder.mkdir()
        ended = group.run(
            stage.command,
            log,
            folder=root,
            limit=stage.limit,
            interruption=interruption,
            stop=stage.stop,
            grace=grace,
        )
    except OSError as error:
        result.state, result.note = summary.FAILED, f"cannot be started: {error}"
        return
    result.seconds, result.status = round(ended.seconds, 1), ended.status
    quote_error = None
    try:
        result.quotes = stage.quote(folder, log)
    except _QUOTE_ERRORS as error:
        quote_error = f"{type(error).__name__}: {error}"
    last = quotes.cut((quotes.lines_of(log) or ["no output"])[-1])
    if ended.interrupted:
        result.state, result.note = summary.INTERRUPTED, signal.Signals(interruption.signals[0]).name
    elif ended.timed_out:
        result.state, result.note = summary.TIMED_OUT, f"after {_duration(stage.limit)}; last line: {last}"
    elif ended.status != 0:
        result.state, result.note = summary.FAILED, f"{_in_words(ended.status)}; last line: {last}"
    elif quote_error is not None:
        result.state, result.note = summary.FAILED, f"ended well, but: {quote_error}"
    else:
        result.state = summary.OK
    if ended.status is None:
        result.note += "; it does not even end by SIGKILL"


def _take_answer(result, out):
    """Makes what the asking stage has found its state."""
    if result.state != summary.OK:
        return
    try:
        answer = json.loads((out / result.name / device.NAME).read_text())
        result.state = summary.NO_DEVICE if answer["device"] is None else summary.OK
        result.note = answer["reason"]
    except _QUOTE_ERRORS as error:
        result.state, result.note = summary.FAILED, f"ended well, but: {type(error).__name__}: {error}"


def _report(result, out, say):
    seconds = "" if result.seconds is None else f", {result.seconds:.1f} s"
    say(f"{result.name}: {result.state}{seconds}{f': {result.note}' if result.note else ''}")
    for line in result.quotes:
        say(f"    {line}")
    if result.log is not None:
        say(f"    see {out / result.log}")


def _in_words(status):
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"ended by {signal.Signals(-status).name}"
    except ValueError:  # a real-time signal
        return f"ended by signal {-status}"


def _duration(seconds):
    return f"{seconds / 60:g} min" if seconds >= 60 else f"{seconds:g} s"

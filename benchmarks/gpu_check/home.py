"""The folder that a check brings home, with the summary and the archive, rewritten whole as stages end."""

from benchmarks.gpu_check import archive, stage_summary
from mixprec import files
from mixprec.command_line import one_line


class Home:
    """Writes the results as far as that is possible; what cannot be written is said once, and never ends the check.

    Args:
        out: folder for the files, a path; it may be absent.
        scratch: folder of the stages' files, likewise.
        machine: dict from :func:`benchmarks.machine.record`.
        former: members of the archive that the check goes on from, as a dict from names to bytes; may be empty.
        say: callable that prints a line.
    """

    def __init__(self, out, scratch, machine, former, say):
        self._out, self._scratch, self._machine, self._say = out, scratch, machine, say
        self._logs = {name: data for name, data in former.items() if name.endswith(".log") and "/" not in name}
        self._said = set()

    def keep(self, results, outputs, complete):
        """Writes both summaries, and the archive unless a stage has only begun.

        Args:
            results: list of :class:`~benchmarks.gpu_check.stage_summary.Result`.
            outputs: dict from names of stages to :class:`~benchmarks.gpu_check.group.Output`.
            complete: whether no more is to come.
        """
        texts = {
            stage_summary.JSON: stage_summary.as_json(self._machine, results, complete=complete),
            stage_summary.TEXT: stage_summary.as_text(self._machine, results),
        }
        for name, text in texts.items():
            self._write(name, text.encode(errors="replace"))
        if any(result.state == stage_summary.RUNNING for result in results):
            return
        self._logs |= {f"{name}.log": output.bytes() for name, output in outputs.items()}
        members = {name: text.encode(errors="replace") for name, text in texts.items()}
        cache = {}
        try:
            for result in results:
                collected = archive.collect(self._scratch / result.name)
                members |= {f"{result.name}/{name}": data for name, data in collected.items()}
            cache = archive.cached(self._scratch / "cache")
        except OSError as error:  # a file that cannot be read
            self._complain(f"not all files are in {archive.NAME}: {error}")
        self._write(archive.NAME, archive.packed(members, self._logs, cache))

    def _write(self, name, data):
        path = self._out / name
        try:
            self._out.mkdir(parents=True, exist_ok=True)
            with files.replacing(path) as temporary, open(temporary, "wb") as file:
                file.write(data)
        except OSError as error:
            self._complain(f"{path} cannot be written: {error.strerror or error}; the check goes on, and prints all")

    def _complain(self, line):
        if line not in self._said:
            self._said.add(line)
            self._say(f"check_gpu: {one_line(line)}")

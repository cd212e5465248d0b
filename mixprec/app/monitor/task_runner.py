"""Work in separate processes: it needs Chainer, decodes images, or takes long. The pages only wait for it."""

import asyncio
import contextlib
import json
import os
import signal
import sys

from mixprec.base.messages import OneLineError, one_line, reworded

_LONGEST = 64 << 20  # bytes of a line of a process's answer
_AT_ONCE = 2  # processes; others wait for their turn. An evaluation may take hours, and waits for evaluations only.
_LONG = "evaluate"
_SECONDS = 600


class TaskError(OneLineError):
    """The work could not be done; the message is one line."""


class Tasks:
    """Starts the processes.

    Args:
        seconds: time limit of processes, except for evaluations.
        command: command to start, a list to which the name of the work is added.
        root: folder of results, below which no process follows a link; each request contains it. ``None`` for none.
    """

    def __init__(self, seconds=_SECONDS, command=(sys.executable, "-m", "mixprec.app.monitor.work"), root=None):
        self._seconds, self._command = seconds, command
        self._root = {} if root is None else {"root": root}
        self._turns = {}
        self._running = set()
        self._shared = {}  # work that continues without a page

    async def run(self, task, arguments, progress=lambda share, text: None):
        """Does a piece of work.

        Args:
            task: its name, one of :mod:`mixprec.app.monitor.work`.
            arguments: dict, for JSON.
            progress: called with a share from 0 to 1 and a text, during the work.

        Returns:
            dict: the answer.

        Raises:
            TaskError: it failed, in one line.
        """
        is_long = task == _LONG
        if is_long not in self._turns:  # made here, as it belongs to the loop
            self._turns[is_long] = asyncio.Semaphore(1 if is_long else _AT_ONCE)
        if self._turns[is_long].locked():
            progress(0.0, "waiting for other work to end")
        async with self._turns[is_long]:
            work = self._run(task, arguments, progress)
            try:
                return await asyncio.wait_for(work, None if is_long else self._seconds)
            except asyncio.TimeoutError:
                raise TaskError(f"{task}: not done after {self._seconds} s") from None

    async def share(self, task, arguments, progress=lambda share, text: None):
        """Does the same, once for all pages that request it meanwhile; it continues if none of them waits any more."""
        key = json.dumps([task, arguments])
        if key not in self._shared:
            listeners = []

            def tell(share, text):
                for listener in list(listeners):
                    listener(share, text)

            work = asyncio.ensure_future(self.run(task, arguments, tell))
            self._shared[key] = work, listeners
            work.add_done_callback(lambda work: self._forget(key, work))
        work, listeners = self._shared[key]
        listeners.append(progress)
        try:
            return await asyncio.shield(work)
        finally:
            listeners.remove(progress)

    def is_shared(self, task, arguments):
        """Returns ``True`` if such work is running."""
        return json.dumps([task, arguments]) in self._shared

    def stop(self, task, arguments):
        """Ends such work, if it is running."""
        work, _ = self._shared.pop(json.dumps([task, arguments]), (None, None))
        if work is not None:
            work.cancel()

    def _forget(self, key, work):
        if self._shared.get(key, (None,))[0] is work:
            del self._shared[key]
        if not work.cancelled():
            work.exception()  # retrieved, whether or not a page still waits

    def end(self):
        """Ends all processes; files that they have not completed do not appear."""
        for process in list(self._running):
            _signal(process, signal.SIGTERM)

    async def _run(self, task, arguments, progress):
        pipe = asyncio.subprocess.PIPE
        options = {"stdin": pipe, "stdout": pipe, "stderr": asyncio.subprocess.DEVNULL}
        with reworded(lambda reason: TaskError(f"no process can be started: {reason}")):
            process = await asyncio.create_subprocess_exec(
                *self._command, task, **options, limit=_LONGEST, start_new_session=True
            )
        self._running.add(process)
        try:
            answer = await self._talk(process, json.dumps({**arguments, **self._root}).encode() + b"\n", progress)
        finally:
            self._running.discard(process)
            _signal(process, signal.SIGKILL)
            await process.wait()
        if "error" in answer:
            raise TaskError(one_line(answer["error"]))
        return answer

    async def _talk(self, process, sent, progress):
        answer = {}
        try:
            process.stdin.write(sent)
            await process.stdin.drain()
            process.stdin.close()
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has ended already; the reason is reported below
        try:
            while line := await process.stdout.readline():
                answer = json.loads(line)
                if "progress" in answer:
                    progress(answer["progress"], one_line(answer.get("text", "")))
        except ValueError as error:
            raise TaskError(f"an answer that cannot be read: {error}") from error
        code = await process.wait()
        if "error" not in answer and (code or "progress" in answer or not answer):
            raise TaskError(f"the process ended with code {code}" + (" (memory is full?)" if code == -9 else ""))
        return answer


def _signal(process, number):
    """Sends a signal to a process and its children, unless it has ended, even if the loop does not know that yet."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)

"""Work of another process on a page: a progress bar, then the result, or one line with the reason of a failure."""

import asyncio

from nicegui import ui

from mixprec.app.monitor.pages import inputs
from mixprec.app.monitor.task_runner import TaskError


class Work:
    """Does the work of a page, and ends it when the page is closed.

    Args:
        monitor: :class:`mixprec.app.monitor.server_state.Monitor`.
    """

    def __init__(self, monitor):
        self._tasks = monitor.tasks
        self._running = {}  # slot -> the work to be shown there; the work that it replaces is ended
        ui.context.client.on_delete(self._end)

    async def into(self, slot, task, arguments, show, *, shared=False):
        """Fills a slot of the page with the result of work.

        Args:
            slot: element, whose content is replaced.
            task: name of the work, see :meth:`mixprec.app.monitor.task_runner.Tasks.run`.
            arguments: dict for it.
            show: called with the answer, inside the slot.
            shared: whether it goes on without the page, see :meth:`mixprec.app.monitor.task_runner.Tasks.share`.

        Returns:
            The answer; ``None`` if it failed, or other work was started for the slot meanwhile.
        """
        slot.clear()
        with slot:
            bar = inputs.Progress(0, show_value=False).props("indeterminate")
            says = ui.label("working").classes("faint")

        def progress(share, text):
            if not says.is_deleted:
                bar.props(remove="indeterminate")
                bar.value, says.text = share, text

        run = self._tasks.share if shared else self._tasks.run
        self.leave(slot)
        work = self._running[slot] = asyncio.ensure_future(run(task, arguments, progress))
        await asyncio.wait([work])
        if self._running.get(slot) is not work:
            return None
        del self._running[slot]
        if slot.is_deleted:
            return None
        problem = "ended" if work.cancelled() else work.exception()
        if problem is not None and not isinstance(problem, (str, TaskError)):
            raise problem
        slot.clear()
        with slot:
            if problem is not None:
                ui.label(str(problem)).props("role=alert")
                return None
            show(work.result())
        return work.result()

    def leave(self, slot):
        """Ends the work for a slot; shared work continues."""
        work = self._running.pop(slot, None)
        if work is not None:
            work.cancel()

    def _end(self):
        for work in self._running.values():
            work.cancel()

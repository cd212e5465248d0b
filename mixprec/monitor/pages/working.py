"""Work of another process on a page: a bar while it goes on, then the result, or one line that says why not."""

from nicegui import ui

from mixprec.monitor.task_runner import TaskError


class Work:
    """Does the work of a page.

    Args:
        monitor: :class:`mixprec.monitor.server_state.Monitor`.
    """

    def __init__(self, monitor):
        self._tasks = monitor.tasks
        self._newest = {}  # of each place; an older answer that comes later is not shown

    async def into(self, place, task, arguments, show):
        """Fills a place of the page.

        Args:
            place: element, whose content is replaced.
            task: name of the work, see :meth:`mixprec.monitor.task_runner.Tasks.run`.
            arguments: dict for it.
            show: called with what it answers, inside of the place.

        Returns:
            What it answers; ``None`` if it failed, or something else is to be shown there by now.
        """
        mine = self._newest[place] = object()
        place.clear()
        with place:
            bar = ui.linear_progress(0, show_value=False).props("indeterminate")
            says = ui.label("working").classes("faint")

        def progress(share, text):
            if not place.is_deleted and self._newest[place] is mine:
                bar.props(remove="indeterminate")
                bar.value, says.text = share, text

        try:
            answer, problem = await self._tasks.run(task, arguments, progress), None
        except TaskError as error:
            answer, problem = None, str(error)
        if place.is_deleted or self._newest[place] is not mine:
            return None
        place.clear()
        with place:
            if problem is not None:
                ui.label(problem).props("role=alert")
            else:
                show(answer)
        return answer

"""Follows a plan: buffers leave and come back before the events that the plan specifies."""

import collections

from mixprec.activation_memory.rounds import LeaveAtOnce, Policy


class Following(Policy):
    """Follows the first of several plans, as long as the round has the events that were recorded for it.

    If the events differ, it follows the next plan with these events; if there is none, all buffers leave at once.

    Args:
        plans: list of :class:`Made`, in the order in which they are tried.
        round_: the :class:`~mixprec.activation_memory.rounds.Round` whose policy this is.
        deviated: function that is called with the round and the number of an event, if no plan has the events of the
            round up to this event.
    """

    def __init__(self, plans, round_, deviated):
        self._plans = list(plans)
        self._round = round_
        self._deviated = deviated
        self._next = 0  # number of the next event to prepare

    def before(self, number, event):
        if self._fits(number, event):
            self._advance(number)

    def after(self, number, event, buffers):
        if self._round.is_backward and not event[0]:
            self._drop(number, buffers)
            self._advance(len(self._round.signature))
        elif self._fits(number, event):
            self._advance(number + 1)
        else:
            self._round.policy.after(number, event, buffers)

    def _fits(self, number, event):
        """Whether there is a plan for the events so far."""
        signature = self._plans[0].signature
        if number < len(signature) and signature[number] == event:
            return True
        others = [plan for plan in self._plans[1:] if plan.signature[: number + 1] == self._round.signature]
        if others:
            self._plans = others
            self._next = 0
            return True
        self._round.policy = LeaveAtOnce()
        self._round.evict()
        self._deviated(self._round, number)
        return False

    def _advance(self, number):
        """Performs the plan's actions before all events up to and including ``number``."""
        plan, buffers = self._plans[0], self._round.buffers
        while self._next <= number:
            for index in plan.out[self._next]:
                buffers[index].copy_out()
            for index in plan.release[self._next]:
                self._release(buffers[index], plan.choices[index])
            for index in plan.back[self._next]:
                buffers[index].come()
            self._next += 1

    def _release(self, buffer, choice):
        if choice == "recompute":
            self._round.find_recipe(buffer)
            if buffer.recipe is None:  # the graph differs from the recorded round, though its events are the same
                buffer.copy_out()
        buffer.leave()

    def _drop(self, number, buffers):
        last = self._plans[0].last
        for buffer in self._plans[0].sources_at.get(number, ()):
            buffers = [*buffers, self._round.buffers[buffer]]
        for buffer in buffers:
            if last.get(buffer.number) == number and self._round.owns(buffer):
                buffer.leave()
                buffer.is_over = True


class Made:
    """A plan, arranged by events.

    Args:
        plan: :class:`~mixprec.activation_memory.planning.Plan`.
        signature: signature of the round, see :class:`~mixprec.activation_memory.rounds.Round`.
        in_use: bytes in use on the device when the recorded round began.

    Attributes:
        choices: ``"keep"``, ``"swap"`` or ``"recompute"`` for each buffer.
        out: ``{event: numbers of buffers}`` that are copied out before an event.
        release: ``{event: numbers of buffers}`` whose memory is released before an event.
        back: ``{event: numbers of buffers}`` that are copied back before an event.
        last: ``{buffer: number of the last event that reads it}``, for buffers that leave.
        sources_at: ``{event: buffers}`` from which others are recomputed before that event.
    """

    def __init__(self, plan, signature, in_use):
        schedule, buffers = plan.schedule, plan.recording.buffers
        self.plan = plan
        self.signature = signature
        self.in_use = in_use
        self.choices = schedule.choices
        self.out, self.release, self.back = (collections.defaultdict(list) for _ in range(3))
        self.last, self.sources_at = {}, collections.defaultdict(list)
        for number, (buffer, choice) in enumerate(zip(buffers, schedule.choices, strict=True)):
            if choice == "keep":
                continue
            self.release[schedule.release[number]].append(number)
            self.last[number] = buffer.needs[-1]
            if choice == "swap":
                self.out[buffer.made + 1].append(number)
                self.back[schedule.back[number]].append(number)
        for buffer, choice in zip(buffers, schedule.choices, strict=True):
            if choice == "recompute":
                for source in buffer.recomputation.sources:
                    self.sources_at[buffer.needs[0]].append(source)
                    if source in self.last:
                        self.last[source] = max(self.last[source], buffer.needs[0])
        for numbers in self.back.values():
            numbers.sort(key=lambda number: buffers[number].needs[0])

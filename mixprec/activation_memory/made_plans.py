"""The plans of :class:`~mixprec.activation_memory.offloading.Offload`, made from recorded rounds, and renewed."""

import dataclasses

from mixprec.activation_memory import metering
from mixprec.activation_memory.budget import in_bytes
from mixprec.activation_memory.following import Made
from mixprec.activation_memory.planning import plan
from mixprec.activation_memory.recording import Bus
from mixprec.base.announcements import announce

_UNLIKE = 16  # kinds of rounds that are remembered without a plan
_REPLANNED = 3  # how often a plan is renewed when more memory is in use
_GROWTH = 0.02  # as a fraction of the budget


class Plans:
    """Makes a plan for each kind of round that is recorded often enough.

    Args:
        budget: from :func:`~mixprec.activation_memory.budget.check_budget`.
        recompute: whether buffers may be recomputed.
        smallest: bytes; smaller buffers stay.
        say: function that is called with each plan as text.

    Attributes:
        made: list of :class:`~mixprec.activation_memory.following.Made`.
        has_deviated: whether a round differed from all recorded ones, so that the next one must be recorded.
    """

    def __init__(self, budget, recompute, smallest, say):
        self._budget = budget
        self._recompute = recompute
        self._smallest = smallest
        self._say = say
        self._unplanned = []
        self._replanned = 0
        self.made = []
        self.has_deviated = False

    def afresh(self):
        """Returns new :class:`Plans` with the same arguments, without ``say``."""
        return Plans(self._budget, self._recompute, self._smallest, lambda text: None)

    @property
    def wants_recording(self):
        """Whether the next round must be recorded."""
        return self.has_deviated or not self.made

    @property
    def waits(self):
        """Whether rounds with buffers were recorded that have no plan yet."""
        return any(each.recording.buffers for each in self._unplanned)

    def add(self, ended, in_use):
        """Takes a recorded round into account.

        Args:
            ended: :class:`~mixprec.activation_memory.rounds.Round` with a meter, whose backward pass is over.
            in_use: bytes that were in use on the device after its first event.
        """
        self.has_deviated = False
        if any(made.signature == ended.signature for made in self.made):
            return
        recording = metering.recording_of(ended, ended.recipes)
        for each in self._unplanned:
            if each.fits(ended.signature, recording):
                self._unplanned.remove(each)
                recording = metering.merged(each.recording, recording, each.read_later)
                self.made.append(self._made_of(recording, ended.copies, ended.signature, max(each.in_use, in_use)))
                ended.copies.trim()
                return
        if len(self._unplanned) == _UNLIKE:
            announce(
                "offload: no two of %d recorded rounds had the same functions and shapes: all buffers are moved at "
                "once, without a plan",
                _UNLIKE,
            )
            del self._unplanned[0]
        self._unplanned.append(_Unplanned(ended.signature, recording, in_use, ended.read_later))

    def _made_of(self, recording, copies, signature, in_use):
        budget = in_bytes(self._budget, copies.total())
        found = plan(recording, budget, Bus(*copies.bus()), recompute=self._recompute, smallest=self._smallest)
        self._say(str(found))
        return Made(found, signature, in_use)

    def grow(self, copies, in_use):
        """Makes plans again if more memory is in use than when rounds were recorded, such as an optimizer's state.

        Args:
            copies: :class:`~mixprec.backends.copy_interface.Copies` of the device.
            in_use: bytes after the first event of a round, as for :meth:`add`.
        """
        least = _GROWTH * in_bytes(self._budget, copies.total())
        if self._replanned == _REPLANNED or in_use - max(made.in_use for made in self.made) <= least:
            return
        self._replanned += 1
        for index, made in enumerate(self.made):
            more = in_use - made.in_use
            recording = made.plan.recording
            events = tuple(dataclasses.replace(event, others=event.others + more) for event in recording.events)
            recording = dataclasses.replace(recording, events=events)
            self.made[index] = self._made_of(recording, copies, made.signature, in_use)


@dataclasses.dataclass
class _Unplanned:
    """A round that was recorded once; a plan needs two recordings, as the first one has start-up times.

    Attributes:
        signature, recording: of the round.
        in_use: bytes, see :meth:`Plans.add`.
        read_later: of the round; complete when the second round is recorded.
    """

    signature: list
    recording: object
    in_use: int
    read_later: set

    def fits(self, signature, recording):
        """Whether another round is of the same kind."""
        return self.signature == signature and len(self.recording.buffers) == len(recording.buffers)

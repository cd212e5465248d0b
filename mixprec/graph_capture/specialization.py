"""One combination of shapes, dtypes and settings: eager calls at first, then a graph for exactly this combination.

    eager calls        warmup - 2 calls
    watched calls      2 calls, whose requests to the device are compared
    compared calls     2 calls at least, each compares graphs with eager steps
    launches           every later call

:class:`~mixprec.graph_capture.captured.Captured` calls :meth:`Specialization.vote` and :meth:`Specialization.call` in
each step.
"""

import logging

from mixprec.backends import wgrad_stream
from mixprec.backends.cudnn import settings
from mixprec.backends.cudnn.errors import lacks_memory
from mixprec.base.announcements import announce
from mixprec.graph_capture.called_links import OtherLinks, called
from mixprec.graph_capture.doubts import Doubts
from mixprec.graph_capture.link_states import StateBuffers
from mixprec.graph_capture.origin import cause_of
from mixprec.graph_capture.rank_agreement import CAPTURE, EAGER, FAILED, LAUNCH, RankVote
from mixprec.graph_capture.reports import Reports, copied
from mixprec.graph_capture.verification import Runs, Verification
from mixprec.graph_capture.watch import difference, watching

_MORE_CALLS = 3  # watched calls if the last two differ: some things happen in the first calls only
# Two: by the second comparison, any host value that changes every step has changed since the capture.
_COMPARED = 2
_log = logging.getLogger("mixprec")
UNDER_WAY = (
    "the model was called for training before the step, and a skipped step would restore its statistics; "
    "turn chainer.config.train or enable_backprop off for that call"
)


class Specialization:
    """Calls of the same work whose arguments differ only in the values of their arrays.

    Args:
        capturable: :class:`~mixprec.graph_capture.capturable.Capturable`.
        arguments: :class:`~mixprec.graph_capture.step_arguments.Arguments` of the first call.
        graphs: :class:`~mixprec.graph_capture.cuda_graphs.CupyGraphs` of the device.
        warmup: number of eager calls, at least 2.
        states: :class:`~mixprec.graph_capture.link_states.LinkStates` of all calls of this work.

    Attributes:
        shapes: shapes and dtypes of the arrays among the arguments, and unusual states, as text.
        calls: number of eager calls before the graph was captured.
        launches: number of calls that launched a graph.
        graph: :class:`~mixprec.graph_capture.cuda_graphs.Graph`, or ``None``.
        failure: why no rank can have a graph, as text, or ``None``.
    """

    def __init__(self, capturable, arguments, graphs, warmup, states):
        self._capturable, self._graphs, self._warmup = capturable, graphs, warmup
        self._buffers, self._states = arguments.buffers_on(graphs), states
        self._state_buffers, self._appeared = StateBuffers(states, graphs), set()
        self.shapes = ", ".join([arguments.shapes, *states.unusual()])
        self.calls = self.launches = 0
        self.graph = self.failure = None
        self._log = None  # the requests of the last watched call to the device
        self._difference = None  # between the last two watched calls
        self._own_failure = None  # a failure that is not yet sent to other ranks
        self._version = self._other_links = None  # at the last watched call
        self._differed, self._to_compare = 0, _COMPARED
        self._doubts = Doubts(capturable.name)
        self._lacks_memory = self._tried_again = False

    @property
    def wants_graph(self):
        """Whether there is a graph, or the next call captures one."""
        return self.calls >= self._warmup and self._difference is None

    def vote(self):
        """Returns this rank's vote for a call; called inside of ``graphs.on_stream()``."""
        reason, drops = "there is no graph for its arguments yet", False
        if self.graph is not None and not (self._session.holds() and self._other_links.hold()):
            self.drop()
            reason, drops = "arrays, rules or hooks have changed since the graph was captured", True
        if self._own_failure is not None:
            return RankVote(FAILED, self._own_failure)
        if self._capturable.is_under_way():
            if self.graph is not None:
                announce("%s runs eagerly: %s", self._capturable.name, UNDER_WAY)
            return RankVote(EAGER, UNDER_WAY, drops=drops)
        if not self.wants_graph:
            return RankVote(EAGER, self._difference or reason, drops=drops)
        number = 0 if self.graph is None else self._session.number
        if self.graph is not None and not self._to_compare:
            return RankVote(LAUNCH, "another graph is there", number)
        failure = self._capturable.why_not()
        return RankVote(CAPTURE, "a graph is captured", number) if failure is None else RankVote(FAILED, failure)

    def call(self, arguments, vote):
        """Does the work once, inside of ``graphs.on_stream()``; returns its result without a computational graph.

        Args:
            arguments: :class:`~mixprec.graph_capture.step_arguments.Arguments`.
            vote: the action of all ranks.
        """
        self._buffers.fill(arguments)
        if vote.drops and self.graph is not None:
            self.drop()
        if vote.kind == LAUNCH:
            return self._launch()
        if vote.kind == FAILED:
            self.failure = vote.reason
            return self._run()
        if vote.kind == EAGER:
            return self._run() if self.wants_graph or self._capturable.is_under_way() else self._warm_up()
        result = self._capture_and_compare()
        if self.graph is not None and not self._to_compare:
            self._graphs.release()  # memory of eager steps and comparisons
        return result

    def finish(self):
        """Ends a call, see :meth:`Capturable.finish <mixprec.graph_capture.capturable.Capturable.finish>`."""
        self._capturable.finish(self._buffers.arguments, wait=False)

    def drop(self):
        """Drops the graph; at least the next two calls are eager again."""
        self._drop_graph()
        self._log, self._to_compare, self.calls = None, _COMPARED, self._warmup - 2
        self._doubts.clear()

    def try_again(self):
        """Starts again with eager calls after the first failure that was caused by a lack of memory.

        Returns:
            Whether it does; the same on all ranks.
        """
        if not self._lacks_memory:
            return False
        self.drop()
        self.failure, self._lacks_memory, self._tried_again = None, False, True
        return True

    def _drop_graph(self):
        if self.graph is not None:
            self._graphs.sync()
            self.graph = self._session = self._reports = self._result = None
            self._graphs.release()

    def _run(self, unchains=False):
        args, kwargs = self._buffers.arguments()
        with wgrad_stream.using(self._graphs.side_stream if self._capturable.second_stream else None):
            return self._capturable.run(args, kwargs, unchains=unchains)

    def _warm_up(self):
        result = self._run() if self.calls < self._warmup - 2 else self._run_watched()
        self.calls += 1
        self.failure = self._own_failure if self._capturable.is_alone else None
        return result

    def _run_watched(self):
        """Runs the work eagerly, and compares its requests to the device with the previous call."""
        self._capturable.becomes_alike()
        links = {} if self._other_links is None else self._other_links.named()
        before = self._states.look({**links, **dict(self._capturable.model.namedlinks())})
        with watching(self._graphs) as log, called() as links, Reports(passes_on=True):
            result = self._run()
        self._appeared = self._states.find(before, log, self._appeared)
        self._other_links = OtherLinks(links, self._capturable.model)
        before, self._version = self._version, self._capturable.version()
        if self._log is not None and self._version is not before:
            self._difference = "parameters, rules or hooks change in each step"  # perhaps not in the next
            self._own_failure = self._capturable.why_not()
            if self.calls >= self._warmup + _MORE_CALLS:
                announce("%s runs eagerly: %s", self._capturable.name, self._difference)
        elif self._log is not None:
            self._difference = difference(self._log, log)
            self._differed = 0 if self._difference is None else self._differed + 1
            if self._differed > _MORE_CALLS:
                self._own_failure = self._difference
        self._log = log
        return result

    def _capture_and_compare(self):
        """Runs the work eagerly, captures it, and compares the graph; first it compares the graph of the last call.

        Memory may hold only one of these at a time: the graph of the last call is dropped before the work runs eagerly,
        and the eager call is over when the next graph is captured. Therefore the model keeps variables of the newest
        graph. All ranks follow the first rank that finds a difference.
        """
        self._log = None
        self._capturable.settle()
        if self.graph is None:
            self._state_buffers.renew()
        self._state_buffers.fill()
        state = self._state()
        # One rank with nondeterministic engines is enough.
        bitwise = not self._on_a_rank(not settings.current().deterministic)
        verification = Verification(state, bitwise, self._capturable.branches)
        runs = 1 if bitwise else self._doubts.runs
        former, reasons = None, {}
        if self.graph is not None:
            former = self._launched(verification, runs)
            verification.turn_back()
            self._session.release()
            self._drop_graph()
        eager, result, reports = self._run_to_compare(verification, runs, state)
        if eager is None:
            self._doubts.clear()
            reports.repeat()
            return result
        outputs = self._capturable.outputs()
        if former is not None:
            reasons |= verification.differences(former, eager)
        former = None  # frees memory
        self._fails(self._capture(outputs))
        if self.failure is None:
            verification.turn_back()
            reasons |= verification.differences(self._launched(verification, runs), eager)
            if not self._differ(reasons, bitwise, len(eager.outcome.arrays)):
                self._to_compare -= self._capturable.applied()
                return self._result_of_graph()
            self._to_compare = _COMPARED
            verification.take(eager.outcome)
        else:
            self._lacks_memory = self._on_a_rank(self._lacks_memory) and not self._on_a_rank(self._tried_again)
        self._capturable.restore(outputs)
        self._graphs.release()  # memory of a failed capture
        reports.repeat()
        return result

    def _run_to_compare(self, verification, runs, state):
        """Runs the work eagerly, several times if bits vary from run to run, to measure by how much.

        Returns:
            ``(runs, result, reports)`` of the last run: :class:`~mixprec.graph_capture.verification.Runs`, ``None`` if
            the first run has brought a part of the state to the device: loaded from a file, or drawn.
        """
        first, apart = None, {}
        for more in reversed(range(runs)):
            with Reports() as reports, self._state_buffers.in_place():
                result = self._run(unchains=True)  # a model that keeps its loss would keep memory that the graph needs
            now = self._state()
            if self._on_a_rank(now.keys() != state.keys() or any(now[name] is not state[name] for name in state)):
                return None, result, reports
            values = self._named(result, reports)
            if first is not None:
                apart = verification.apart(first, values, apart)
            if more:
                first = first or verification.outcome(values)
                verification.turn_back()
        first = None  # frees memory
        return Runs(verification.outcome(values), apart), result, reports

    def _launched(self, verification, runs):
        """Launches the graph ``runs`` times from the same state; the same number on all ranks."""
        first, apart = None, {}
        for more in reversed(range(runs)):
            self._launch_graph()
            values = self._named(self._result, self._reports)
            if first is None:
                first = verification.outcome(values)
            else:
                apart = verification.apart(first, values, apart)
            if more:
                verification.turn_back()
        return Runs(first, apart)

    def _differ(self, reasons, bitwise, count):
        """Returns whether any rank has a difference; sets the failure if it cannot be chance.

        Args:
            reasons: dict from names of arrays that differ on this rank to sentences.
            bitwise: whether bits are the same from run to run.
            count: number of arrays that were compared.
        """
        differs = self._on_a_rank(bool(reasons))
        if differs:
            counts = next(iter(reasons.values()), None) if bitwise else self._doubts.after(reasons)
            for reason in reasons.values():
                _log.info("%s: %s", self._capturable.name, reason)
            self._fails(counts and f"{counts}; {len(reasons)} of {count} arrays differ")
        self._doubts.over(differs)
        return differs

    def _on_a_rank(self, condition):
        """Whether a condition holds on any rank; a collective call."""
        return self._capturable.first_of_ranks("so" if condition else None) is not None

    def _fails(self, reason):
        """Sets the failure to the reason of the first rank that has one."""
        self.failure = self._capturable.first_of_ranks(reason)

    def _state(self):
        return {**self._other_links.state(), **self._state_buffers.arrays(), **self._capturable.state()}

    def _capture(self, outputs):
        """Captures the work; if that fails, restores the outputs of the eager call and returns the reason, as text."""
        session, reports = self._capturable.session(), Reports()

        def body():
            with session.capturing(), reports, self._state_buffers.in_place():
                return self._run(unchains=True)

        try:
            self.graph, self._result = self._graphs.capture(body)
        except BaseException as error:
            self._capturable.restore(outputs)
            self._state_buffers.leave()
            if not isinstance(error, Exception):
                raise
            self._lacks_memory = lacks_memory(error)
            return cause_of(error)
        self._session, self._reports = session, reports
        return None

    def _launch(self):
        self._state_buffers.fill()
        self._launch_graph()
        self.launches += 1
        return self._result_of_graph()

    def _launch_graph(self):
        self._session.before_launch()
        self.graph.launch()
        self._session.after_launch()
        self._state_buffers.leave()

    def _result_of_graph(self):
        """Reports the values of the launch, and returns its result."""
        copies = {}  # shared arrays stay shared, as in an eager step
        self._reports.repeat(copies)
        return copied(self._result, copies)

    def _named(self, result, reports):
        """Returns ``[(name, value)]`` of everything that a run returns, reports or leaves in links, to be compared."""
        reported = [(f"the reported {name}", value) for name, value in reports.values]
        return [("the result", result), *reported, *self._state_buffers.values()]

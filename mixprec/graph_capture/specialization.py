"""One combination of shapes, dtypes and settings: eager calls at first, then a graph for exactly that.

    eager calls        warmup - 2 calls
    watched calls      2 calls, whose requests to the device are compared
    compared calls     2 calls at least, each compares graphs with eager steps
    launches           every later call

:class:`~mixprec.graph_capture.captured.Captured` calls :meth:`Specialization.wish` and :meth:`Specialization.call` in
each step.
"""

import logging

from mixprec.backends import wgrad_stream
from mixprec.backends.cudnn import settings
from mixprec.backends.cudnn.errors import lacks_memory
from mixprec.base.announcements import announce
from mixprec.graph_capture.called_links import OtherLinks, called
from mixprec.graph_capture.doubts import Doubts
from mixprec.graph_capture.origin import cause_of
from mixprec.graph_capture.reports import Reports, copied
from mixprec.graph_capture.verification import Runs, Verification
from mixprec.graph_capture.watch import difference, watching
from mixprec.graph_capture.wishes import CAPTURE, EAGER, FAILED, LAUNCH, Wish

_MORE_CALLS = 3  # are watched if the last two differ: some things happen in the first calls only
# Two, as by the second one a number or an array of the host that is another in each step is not what it was at the
# capture any more.
_COMPARED = 2
_log = logging.getLogger("mixprec")
UNDER_WAY = (
    "the model was called for training before the step, whose statistics come back if the step is skipped; "
    "with chainer.config.train or enable_backprop off that is no part of it"
)


class Specialization:
    """Calls of the same work whose arguments differ in the values of their arrays, and in nothing else.

    Args:
        capturable: :class:`~mixprec.graph_capture.capturable.Capturable`.
        arguments: :class:`~mixprec.graph_capture.step_arguments.Arguments` of the first call.
        graphs: of the device, :class:`~mixprec.graph_capture.cuda_graphs.CupyGraphs`.
        warmup: number of eager calls, at least 2.

    Attributes:
        shapes: of the arrays among the arguments, as text.
        calls: number of eager calls before the graph was captured.
        launches: number of calls that launched a graph.
        graph: :class:`~mixprec.graph_capture.cuda_graphs.Graph`, or ``None``.
        failure: why there can be no graph, on no rank, as text, or ``None``.
    """

    def __init__(self, capturable, arguments, graphs, warmup):
        self._capturable, self._graphs, self._warmup = capturable, graphs, warmup
        self._buffers = arguments.buffers_on(graphs)
        self.shapes = arguments.shapes
        self.calls = self.launches = 0
        self.graph = self.failure = None
        self._log = None  # what the last watched call asked of the device
        self._difference = None  # between the last two
        self._own_failure = None  # what other ranks have still to be told
        self._version = self._other_links = None  # at the last watched call
        self._differed, self._to_compare = 0, _COMPARED
        self._doubts = Doubts(capturable.name)
        self._lacks_memory = self._tried_again = False

    @property
    def wants_graph(self):
        """Whether there is a graph, or the next call captures one."""
        return self.calls >= self._warmup and self._difference is None

    def wish(self):
        """Returns the :class:`~mixprec.graph_capture.wishes.Wish` for a call, inside of ``graphs.on_stream()``."""
        reason, drops = "there is no graph for its arguments yet", False
        if self.graph is not None and not (self._session.holds() and self._other_links.hold()):
            self.drop()
            reason, drops = "arrays, rules or hooks are not those of the graph any more", True
        if self._own_failure is not None:
            return Wish(FAILED, self._own_failure)
        if self._capturable.is_under_way():
            if self.graph is not None:
                announce("%s runs eagerly: %s", self._capturable.name, UNDER_WAY)
            return Wish(EAGER, UNDER_WAY, drops=drops)
        if not self.wants_graph:
            return Wish(EAGER, self._difference or reason, drops=drops)
        number = 0 if self.graph is None else self._session.number
        if self.graph is not None and not self._to_compare:
            return Wish(LAUNCH, "another graph is there", number)
        failure = self._capturable.why_not()
        return Wish(CAPTURE, "a graph is captured", number) if failure is None else Wish(FAILED, failure)

    def call(self, arguments, wish):
        """Does the work once, inside of ``graphs.on_stream()``; returns its result, without a computational graph.

        Args:
            arguments: :class:`~mixprec.graph_capture.step_arguments.Arguments`.
            wish: what all ranks do.
        """
        self._buffers.fill(arguments)
        if wish.drops and self.graph is not None:
            self.drop()
        if wish.kind == LAUNCH:
            return self._launch()
        if wish.kind == FAILED:
            self.failure = wish.reason
            return self._run()
        if wish.kind == EAGER:
            return self._run() if self.wants_graph or self._capturable.is_under_way() else self._warm_up()
        result = self._capture_and_compare()
        if self.graph is not None and not self._to_compare:
            self._graphs.release()  # what eager steps and comparisons needed
        return result

    def finish(self):
        """Ends a call, see :meth:`Capturable.finish <mixprec.graph_capture.capturable.Capturable.finish>`."""
        self._capturable.finish(self._buffers.arguments, wait=False)

    def drop(self):
        """Drops the graph; the next calls are eager again, two of them at least."""
        self._drop_graph()
        self._log, self._to_compare, self.calls = None, _COMPARED, self._warmup - 2
        self._doubts.clear()

    def try_again(self):
        """Begins with eager calls again after a failure, if that was for want of memory for the first time.

        Returns:
            Whether it does; all ranks do, or none.
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
        """Runs the work eagerly, and compares what it asks of the device with the call before."""
        self._capturable.becomes_alike()
        with watching(self._graphs) as log, called() as links, Reports(passes_on=True):
            result = self._run()
        self._other_links = OtherLinks(links, self._capturable.model)
        before, self._version = self._version, self._capturable.version()
        if self._log is not None and self._version is not before:
            self._difference = "parameters, rules or hooks are others each time"  # perhaps not the next time
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
        """Runs the work eagerly, captures it, and compares what the graph does; first, the graph of the last call.

        There is memory for one of these at a time: the graph of the last call is dropped before the work runs eagerly,
        and the eager call is over when the next graph is captured. Variables that the model keeps are therefore those
        of the newest graph. All ranks take the decision of the first one that finds a difference.
        """
        self._log = None
        self._capturable.settle()
        state = self._state()
        # One rank is enough whose engines may give other bits each time.
        bitwise = not self._on_a_rank(not settings.current().deterministic)
        verification, runs = Verification(state, bitwise, self._capturable.course), 1 if bitwise else self._doubts.runs
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
        former = None  # memory
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
        self._graphs.release()  # what a capture has left that failed
        reports.repeat()
        return result

    def _run_to_compare(self, verification, runs, state):
        """Runs the work eagerly, and where bits vary from run to run some times more, to see by how much.

        Returns:
            ``(runs, result, reports)`` of the last run: :class:`~mixprec.graph_capture.verification.Runs`, ``None`` if
            the state, or a part of it, has come to the device in the first run: from a file, or drawn.
        """
        first, apart = None, {}
        for more in reversed(range(runs)):
            with Reports() as reports:
                result = self._run(unchains=True)  # or a model that keeps its loss keeps memory that the graph needs
            now = self._state()
            if self._on_a_rank(now.keys() != state.keys() or any(now[name] is not state[name] for name in state)):
                return None, result, reports
            values = _named(result, reports)
            if first is not None:
                apart = verification.apart(first, values, apart)
            if more:
                first = first or verification.outcome(values)
                verification.turn_back()
        first = None  # memory
        return Runs(verification.outcome(values), apart), result, reports

    def _launched(self, verification, runs):
        """Launches the graph so many times from the same state; all ranks equally often."""
        first, apart = None, {}
        for more in reversed(range(runs)):
            self._launch_graph()
            values = _named(self._result, self._reports)
            if first is None:
                first = verification.outcome(values)
            else:
                apart = verification.apart(first, values, apart)
            if more:
                verification.turn_back()
        return Runs(first, apart)

    def _differ(self, reasons, bitwise, count):
        """Whether there is a difference on a rank; if it cannot be chance, there is a failure then.

        Args:
            reasons: dict from names of what differs on this rank to sentences.
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
        """Whether a condition holds on a rank; all ask at the same time."""
        return self._capturable.first_of_ranks("so" if condition else None) is not None

    def _fails(self, reason):
        """Notes why there can be no graph, on this rank or another one, if there is a reason."""
        self.failure = self._capturable.first_of_ranks(reason)

    def _state(self):
        return {**self._other_links.state(), **self._capturable.state()}

    def _capture(self, outputs):
        """Captures the work: afterwards there is a graph, or the outputs of the eager call and a reason, as text."""
        session, reports = self._capturable.session(), Reports()

        def body():
            with session.capturing(), reports:
                return self._run(unchains=True)

        try:
            self.graph, self._result = self._graphs.capture(body)
        except BaseException as error:
            self._capturable.restore(outputs)
            if not isinstance(error, Exception):
                raise
            self._lacks_memory = lacks_memory(error)
            return cause_of(error)
        self._session, self._reports = session, reports
        return None

    def _launch(self):
        self._launch_graph()
        self.launches += 1
        return self._result_of_graph()

    def _launch_graph(self):
        self._session.before_launch()
        self.graph.launch()
        self._session.after_launch()

    def _result_of_graph(self):
        """Reports what the launch reports, and returns its result."""
        copies = {}  # what is one array in an eager step is one here
        self._reports.repeat(copies)
        return copied(self._result, copies)


def _named(result, reports):
    return [("the result", result), *((f"the reported {name}", value) for name, value in reports.values)]

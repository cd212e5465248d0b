"""The interface of work that can be captured, and of what the host does around a CUDA graph of it.

Two classes implement it: :class:`~mixprec.graph_capture.graph_step.TrainingStep` and
:class:`~mixprec.graph_capture.captured_evaluation.Evaluation`. :class:`~mixprec.graph_capture.captured.Captured` and
:class:`~mixprec.graph_capture.specialization.Specialization` call it.
"""

import abc
import contextlib

import chainer

from mixprec.graph_capture.called_links import hook_left_out


class Capturable(abc.ABC):
    """Work that is done again and again, each time with the same launches.

    A call asks :meth:`is_under_way`, and is then inside of :meth:`agreed`. An eager call calls :meth:`run` and
    :meth:`finish`. The call that captures a graph asks :meth:`why_not`, calls :meth:`settle` and :meth:`run` (eagerly,
    once or some times from the same state, and while the graph is captured), and compares what the work returns and the
    arrays of :meth:`state`. A call that launches the graph calls the methods of the :class:`GraphSession` and
    :meth:`finish`; :meth:`run` is not called any more.

    The methods that are not abstract are those of work that moves nothing.

    Attributes:
        name: for messages, such as ``"the training step"``.
        model: the :class:`chainer.Link` whose arrays the work reads and moves.
        second_stream: whether the work may use a second stream of the device.
        course: names of arrays of :meth:`state` that say which of several ways the work has gone.
        is_alone: whether there are no other ranks that do the same work at the same time.
        variant: what the next call does that others do not, hashable: each variant has graphs of its own.
    """

    name: str
    model: chainer.Link
    second_stream = False
    course = ()
    is_alone = True
    variant = None

    @abc.abstractmethod
    def run(self, args, kwargs, *, unchains=False):
        """Does the work once, eagerly or while a graph is captured. Where memory is short, all is left as it was.

        Args:
            args: tuple of positional arguments, with all arrays on the device.
            kwargs: dict of keyword arguments, likewise.
            unchains: whether to cut the computational graph behind the result, whose activations need memory.

        Returns:
            Variables, arrays and numbers, also in tuples, lists and dicts.
        """

    @abc.abstractmethod
    def session(self):
        """Returns a new :class:`GraphSession`, for a graph that is captured next."""

    def is_under_way(self):
        """Whether a part of the next call was done already, outside of :meth:`run`: a graph would not contain it."""
        return False

    @contextlib.contextmanager
    def agreed(self, wish):
        """A context for a call, in which all ranks do the same.

        Args:
            wish: :class:`~mixprec.graph_capture.wishes.Wish` of this rank.

        Gives:
            what :func:`~mixprec.graph_capture.wishes.agreed` returns.
        """
        yield wish

    def becomes_alike(self):  # noqa: B027
        """Called before calls that have to ask the device for the same: those that are watched, and all later ones."""

    def first_of_ranks(self, reason):
        """Returns the reason of the first rank that has one: a text, or ``None``; all ranks ask at the same time."""
        return reason

    def version(self):  # noqa: B027
        """Returns an object that is replaced when the next call is not expected to do the same as the last one."""

    def why_not(self):
        """Returns why the work cannot be captured, as text, or ``None``; asked before a graph is captured."""
        return hook_left_out(self.model)

    def settle(self):  # noqa: B027
        """Brings to the host what earlier calls have left to count on the device; the host may wait for the device."""

    def state(self):
        """Returns the arrays that the work moves, in a dict by names for messages."""
        return {}

    def outputs(self):  # noqa: B027
        """Returns what the last call has left in the model beside :meth:`state`, for :meth:`restore`."""

    def restore(self, outputs):  # noqa: B027
        """Puts what :meth:`outputs` returned back into the model; another call may have replaced it."""

    def applied(self):
        """Whether the last call has moved the state: not if it was skipped. The host may wait for the device."""
        return True

    def finish(self, arguments, *, wait):  # noqa: B027
        """Ends every call, also one that launched a graph.

        Args:
            arguments: callable that returns ``(args, kwargs)`` of the call.
            wait: whether the host may wait for the device.
        """


class GraphSession(abc.ABC):
    """What the host does around one CUDA graph: while it is captured, and before and after each launch.

    The methods that are not abstract are those of work that moves nothing.

    Attributes:
        number: of the capture, as all ranks count.
    """

    number = 0

    @contextlib.contextmanager
    def capturing(self):
        """A context in which the work is run while the graph is captured; all streams are joined at its end."""
        yield

    @abc.abstractmethod
    def holds(self):
        """Whether everything that the graph was captured with is still there; asked before each launch."""

    def before_launch(self):  # noqa: B027
        """Brings to the device what the graph reads from fixed addresses, such as hyperparameters."""

    def after_launch(self):  # noqa: B027
        """Leaves the objects of the host as an eager call would."""

    def release(self):  # noqa: B027
        """Drops references to memory of the graph; called before an eager call is compared with it."""

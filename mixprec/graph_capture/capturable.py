"""Interfaces: :class:`Capturable` for work that can be captured, :class:`GraphSession` for the host side of a graph.

Two classes implement it: :class:`~mixprec.graph_capture.graph_step.TrainingStep` and
:class:`~mixprec.graph_capture.captured_evaluation.Evaluation`. :class:`~mixprec.graph_capture.captured.Captured` and
:class:`~mixprec.graph_capture.specialization.Specialization` call it.
"""

import abc
import contextlib

import chainer

from mixprec.graph_capture.called_links import hook_left_out


class Capturable(abc.ABC):
    """Work that is repeated, each time with the same launches.

    A call checks :meth:`is_under_way`, and then runs inside of :meth:`agreed`. An eager call uses :meth:`run` and
    :meth:`finish`. The call that captures a graph checks :meth:`why_not`, calls :meth:`settle` and :meth:`run`
    (eagerly, one or more times from the same state, and during the capture), and compares the results and the arrays of
    :meth:`state`. A call that launches the graph uses the methods of the :class:`GraphSession` and :meth:`finish`, not
    :meth:`run`.

    The defaults of the other methods are for work that changes no state.

    Attributes:
        name: for messages, such as ``"the training step"``.
        model: the :class:`chainer.Link` whose arrays the work reads and changes.
        second_stream: whether the work may use a second stream of the device.
        branches: names of arrays of :meth:`state` that tell which of several branches the work has taken.
        is_alone: whether no other ranks do the same work at the same time.
        variant: a hashable value that distinguishes kinds of calls: each variant has graphs of its own.
    """

    name: str
    model: chainer.Link
    second_stream = False
    branches = ()
    is_alone = True
    variant = None

    @abc.abstractmethod
    def run(self, args, kwargs, *, unchains=False):
        """Does the work once, eagerly or during a capture. If memory runs out, nothing has changed.

        Args:
            args: tuple of positional arguments, with all arrays on the device.
            kwargs: dict of keyword arguments, with all arrays on the device.
            unchains: whether to cut the computational graph behind the result, to free the memory of its activations.

        Returns:
            Variables, arrays and numbers, also in tuples, lists and dicts.
        """

    @abc.abstractmethod
    def session(self):
        """Returns a new :class:`GraphSession` for the next graph."""

    def cut(self):  # noqa: B027
        """Cuts the graphs behind variables that the last call has left in the model; called before each call."""

    def is_under_way(self):
        """Whether a part of the next call has already run outside of :meth:`run`: a graph would not contain it."""
        return False

    @contextlib.contextmanager
    def agreed(self, vote):
        """A context for a call, in which all ranks do the same.

        Args:
            vote: :class:`~mixprec.graph_capture.rank_agreement.RankVote` of this rank.

        Yields:
            The result of :func:`~mixprec.graph_capture.rank_agreement.resolve`.
        """
        yield vote

    def becomes_alike(self):  # noqa: B027
        """Called before calls that must make the same requests to the device: watched calls, and all later ones."""

    def first_of_ranks(self, reason):
        """Returns the reason of the first rank that has one, a string, or ``None``; a collective call."""
        return reason

    def version(self):  # noqa: B027
        """Returns an object that is replaced when the next call may differ from the last one."""

    def why_not(self):
        """Returns why the work cannot be captured, as text, or ``None``; called before a capture."""
        return hook_left_out(self.model)

    def settle(self):  # noqa: B027
        """Brings counts that earlier calls left on the device to the host; the host may wait for the device."""

    def state(self):
        """Returns a dict of the arrays that the work changes, by names for messages."""
        return {}

    def outputs(self):  # noqa: B027
        """Returns the objects that the last call has left in the model, beside :meth:`state`, for :meth:`restore`."""

    def restore(self, outputs):  # noqa: B027
        """Puts the result of :meth:`outputs` back into the model; another call may have replaced it."""

    def applied(self):
        """Whether the last call has changed the state, and was not skipped. The host may wait for the device."""
        return True

    def finish(self, arguments, *, wait):  # noqa: B027
        """Ends a call, also a call that launched a graph.

        Args:
            arguments: function that returns ``(args, kwargs)`` of the call.
            wait: whether the host may wait for the device.
        """


class GraphSession(abc.ABC):
    """The host's part of one CUDA graph: during its capture, and before and after each launch.

    The defaults of the other methods are for work that changes no state.

    Attributes:
        number: number of the capture, the same on all ranks.
    """

    number = 0

    @contextlib.contextmanager
    def capturing(self):
        """A context in which the work runs during the capture; all streams are joined at its end."""
        yield

    @abc.abstractmethod
    def holds(self):
        """Whether all objects that the graph uses are still in use; checked before each launch."""

    def before_launch(self):  # noqa: B027
        """Uploads values that the graph reads from fixed addresses, such as hyperparameters."""

    def after_launch(self):  # noqa: B027
        """Updates the objects on the host as an eager call would."""

    def release(self):  # noqa: B027
        """Drops references to the graph's memory; called before an eager call is compared with the graph."""

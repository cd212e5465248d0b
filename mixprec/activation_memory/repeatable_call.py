"""A call that can be repeated exactly: same random numbers, same states of links, same settings."""

import contextlib
import random

import chainer
import numpy as np
from chainer import reporter

from mixprec.activation_memory import graph_edge
from mixprec.activation_memory.link_attributes import LinkAttributes, seeing
from mixprec.activation_memory.repetition import Repetition
from mixprec.backends.dropout_state import recording_keys, repeating_keys
from mixprec.base.nested import mapped
from mixprec.functions import watching

# Settings of Chainer that keep their values from the backward pass.
_OF_THE_PASS = {"enable_backprop", "in_recomputing", "_will_recompute", "debug", "schedule_func"}


class RepeatableCall:
    """A call of a function.

    Args:
        function: callable.
        args: positional arguments; for computed variables only their arrays are kept.
        kwargs: keyword arguments.
        links: list of links whose attributes it may change.

    Attributes:
        nodes: variable nodes of the arguments that were computed by functions.
        attributes: :class:`~mixprec.activation_memory.link_attributes.LinkAttributes`.
        repetition: :class:`~mixprec.activation_memory.repetition.Repetition`.
        keys: list of the random numbers of dropout, from :func:`~mixprec.backends.dropout_state.recording_keys`.
    """

    def __init__(self, function, args, kwargs, links):
        self.nodes = []
        self.attributes = LinkAttributes(links)
        self.repetition = Repetition()
        self.keys = []
        self._function = function
        self._given = args, kwargs  # arguments of the first call
        self._arguments = mapped(self._given, self._held)
        self._settings = _settings()
        self._random = None

    def first(self, made):
        """Returns the result of the first call.

        Args:
            made: callback for each function, see :func:`~mixprec.functions.watching.watch`.
        """
        (args, kwargs), self._given = self._given, None
        before = _random_states()
        with contextlib.ExitStack() as stack:
            self.keys = stack.enter_context(recording_keys())
            stack.enter_context(watching.watch_alone(made))
            stack.enter_context(self.repetition.first())
            stack.enter_context(chainer.using_config("_will_recompute", True))
            stack.enter_context(seeing(self.attributes))
            result = self._function(*args, **kwargs)
        self.attributes.compare()
        if not _are_same(before, _random_states()):
            self._random = before
        return result

    @contextlib.contextmanager
    def again(self):
        """A context that yields the result of another call, in which links have the attributes that this call set."""
        args, kwargs = mapped(self._arguments, _taken_out)
        with contextlib.ExitStack() as stack:
            stack.enter_context(graph_edge.open_again())
            for name, value in self._settings.items():
                if getattr(chainer.config, name, None) is not value:
                    stack.enter_context(chainer.using_config(name, value))
            stack.enter_context(chainer.using_config("in_recomputing", True))
            stack.enter_context(chainer.using_config("enable_backprop", True))
            stack.enter_context(watching.watch_alone())
            stack.enter_context(reporting_nothing())
            stack.enter_context(repeating_keys(self.keys))
            if self._random is not None:
                stack.callback(_set_random_states, _random_states())
                _set_random_states(self._random)
            stack.enter_context(seeing())
            stack.enter_context(self.attributes.as_before())
            stack.enter_context(self.repetition.again())
            yield self._function(*args, **kwargs)

    def _held(self, x):
        if isinstance(x, chainer.Variable) and not isinstance(x, chainer.Parameter) and x.creator_node is not None:
            x.retain_data()
            self.nodes.append(x.node)
            return _Held(x.node)
        return x


class _Held:
    def __init__(self, node):
        self.node = node


def _taken_out(x):
    return x.node.get_variable() if type(x) is _Held else x


def _settings():
    settings = {**vars(chainer.global_config), **vars(chainer.config._local)}
    return {name: value for name, value in settings.items() if name not in _OF_THE_PASS}


def reporting_nothing():
    """Returns a context manager in which ``chainer.report`` does not reach the user's reporter."""
    reporters = reporter._get_reporters()
    return reporters[-1].scope({}) if reporters else contextlib.nullcontext()


def _random_states():
    return np.random.get_state(), random.getstate()


def _set_random_states(states):
    np.random.set_state(states[0])
    random.setstate(states[1])


def _are_same(before, after):
    (kind, keys, *rest), (kind_after, keys_after, *rest_after) = before[0], after[0]
    same = (kind, rest) == (kind_after, rest_after) and np.array_equal(keys, keys_after)
    return same and before[1] == after[1]

"""States of links: attributes that a call reads and replaces, such as ``c`` and ``h`` of ``L.LSTM``.

A graph reads and writes them at fixed addresses, in :class:`StateBuffers`. The attributes of the links stay the truth:
what the user has set there is copied into the buffers before a launch.
"""

import contextlib
import dataclasses
import weakref
from typing import Any, NamedTuple

import chainer

from mixprec.backends import is_of_numpy
from mixprec.backends.device_log import Record
from mixprec.graph_capture.watch import address_of, used_before

_OWN = "_mixprec_"  # prefix of the attributes that mixprec gives to links and variables


class LinkState(NamedTuple):
    """An attribute of a link.

    Attributes:
        link: the link.
        name: name of the attribute.
        label: the name for messages.
        usual: its :attr:`kind` in the calls in which it was found.
    """

    link: chainer.Link
    name: str
    label: str
    usual: str

    @property
    def value(self):
        """The variable, the array, or ``None``."""
        return vars(self.link).get(self.name)

    @property
    def array(self):
        """The array on the device, or ``None``."""
        return _array_in(self.value)

    @property
    def kind(self):
        """A text: type, shape and dtype.

        Raises:
            TypeError: a function has computed the variable, and the backward pass would continue beyond it.
        """
        value = self.value
        if isinstance(value, chainer.Variable) and ("_node" not in vars(value) or value.creator_node is not None):
            raise TypeError(f"{self.label} is a computed variable, and the backward pass would continue beyond it")
        return _kind_of(value)


class _Before(NamedTuple):
    state: LinkState
    array: Any  # a weak reference to it, or None
    place: tuple  # its address and bytes


class LinkStates:
    """All states that were found in watched calls of the same work."""

    def __init__(self):
        self._found = {}  # by link and name

    def __iter__(self):
        return iter(self._found.values())

    def unusual(self):
        """Returns a tuple of texts, empty if all states are of the kinds that they had in the calls that found them.

        Raises:
            TypeError: see :attr:`LinkState.kind`.
        """
        return tuple([f"{each.label} {kind}" for each in self if (kind := each.kind) != each.usual])

    def look(self, links):
        """Returns the attributes that may be states, before a watched call; without references to memory.

        Args:
            links: dict from names to links.
        """
        found = []
        for path, link in links.items():
            for name, value in vars(link).items():
                array = _array_in(value)
                if (array is None and value is not None) or name in link._persistent or name.startswith(_OWN):
                    continue
                place = (0, 0) if array is None else (address_of(array), array.nbytes)
                state = LinkState(link, name, f"{name} of {path}", _kind_of(value))
                found.append(_Before(state, None if array is None else weakref.ref(array), place))
        return found

    def find(self, before, log, appeared):
        """Finds states after a watched call, and marks their memory in its log as new: it is an input of the call.

        These are attributes that the call has read and replaced, and attributes that were ``None`` before the last two
        watched calls, and variables or arrays after them: calls that find them set are other calls.

        Args:
            before: the result of :meth:`look`.
            log: the records of the call.
            appeared: the result for the watched call before.

        Returns:
            The keys of the attributes that were ``None`` and are not.
        """
        used, appears = used_before(log, [each.place for each in before]), set()
        for state, array, place in before:
            key, now = (id(state.link), state.name), state.array
            if array is None and now is not None:
                appears.add(key)
            if key in appears & appeared or (place in used and (now is None or now is not array())):
                number = sum(each.label == state.label for each in self)  # other links have no names of their own
                self._found.setdefault(key, state._replace(label=f"{state.label} ({number})") if number else state)
        places = [each.place for each in before if (id(each.state.link), each.state.name) in self._found]
        log[:0] = [Record("memory", "new", place) for place in places]
        return appears


@dataclasses.dataclass
class _Slot:
    """The place of a state in a graph: ``buffer`` is ``None`` if calls find no array."""

    state: LinkState
    buffer: Any
    start: Any  # the value before a call
    end: Any = None  # the value after it

    def put(self, value):
        """Gives the link a new variable for the same array."""
        vars(self.state.link)[self.state.name] = _of_same_kind(value, _array_in(value))


class StateBuffers:
    """Arrays that hold the states of links at the same addresses in each call of a graph.

    Args:
        states: :class:`LinkStates`.
        graphs: :class:`~mixprec.graph_capture.cuda_graphs.CupyGraphs` of the device.
    """

    def __init__(self, states, graphs):
        self._states, self._graphs, self._slots = states, graphs, []

    def renew(self):
        """Makes buffers for the states that are known now; there is no graph with the old ones."""
        self._slots = []
        for state in self._states:
            buffer = None if state.array is None else self._graphs.empty_like(state.array)
            self._slots.append(_Slot(state, buffer, _of_same_kind(state.value, buffer)))

    def fill(self):
        """Brings the states into the buffers, before a launch or a comparison."""
        slots = [slot for slot in self._slots if slot.buffer is not None]
        _move([(slot.state.array, slot.buffer) for slot in slots], self._graphs.copy)

    def arrays(self):
        """Returns a dict of the buffers, which a call changes, by names for messages."""
        return {slot.state.label: slot.buffer for slot in self._slots if slot.buffer is not None}

    def values(self):
        """Returns ``[(name, value)]`` of the states that the last call has left elsewhere."""
        return [(slot.state.label, slot.end) for slot in self._slots if _array_in(slot.end) is not slot.buffer]

    @contextlib.contextmanager
    def in_place(self):
        """A context for a run that begins and ends with the states in the buffers; may be repeated."""
        for slot in self._slots:
            slot.put(slot.start)
        yield
        moves = []
        for slot in self._slots:
            array, buffer = slot.state.array, slot.buffer
            if array is not None and buffer is not None and (array.shape, array.dtype) == (buffer.shape, buffer.dtype):
                moves.append((array, buffer))
                array = buffer
            slot.end = _of_same_kind(slot.state.value, array)
        _move(moves, _assign)
        self.leave()

    def leave(self):
        """Gives the links the states that the last run has left, after a launch."""
        for slot in self._slots:
            slot.put(slot.end)


def _array_in(value):
    if isinstance(value, chainer.Variable):
        if isinstance(value, chainer.Parameter) or "_node" not in vars(value):  # deferred, not to be computed
            return None
        value = value.array
    return value if isinstance(value, chainer.get_array_types()) and value.size and not is_of_numpy(value) else None


def _kind_of(value):
    array = _array_in(value)
    shape = "" if array is None else f" {array.shape} {array.dtype}"
    return "None" if value is None else f"{type(value).__name__}{shape}"


def _of_same_kind(value, array):
    """Returns an array as a new variable if the value is a variable; the value itself if there is no array."""
    if array is None:
        return value
    if not isinstance(value, chainer.Variable):
        return array
    variable = chainer.Variable(array, name=value.name, requires_grad=value.requires_grad)
    vars(variable).update((name, note) for name, note in vars(value).items() if name.startswith(_OWN))
    return variable


def _move(pairs, copy):
    """Copies arrays into others; they may have changed places."""
    pairs = [(source, target) for source, target in pairs if source is not target]
    places = {address_of(target) for _, target in pairs}
    pairs = [(source.copy() if address_of(source) in places else source, target) for source, target in pairs]
    for source, target in pairs:
        copy(source, target)


def _assign(source, target):
    target[...] = source

"""States of links: attributes that a call reads and replaces, such as ``c`` and ``h`` of ``L.LSTM``.

A graph reads and writes them at fixed addresses, in :class:`StateBuffers`. The attributes of the links stay the truth:
what the user has set there is copied into the buffers before a launch.
"""

import contextlib
import dataclasses
import weakref

import chainer

from mixprec.backends import is_of_numpy
from mixprec.backends.device_log import Record
from mixprec.backends.memory import flat, is_dense, same_order
from mixprec.graph_capture.watch import address_of, uses

_OWN = "_mixprec_"  # prefix of the attributes that mixprec gives to links and variables


@dataclasses.dataclass(frozen=True, eq=False)
class LinkState:
    """An attribute of a link.

    Attributes:
        link: the link.
        name: name of the attribute.
        label: the name for messages.
        usual: its kind in the calls in which it was found, a text: type, shape and dtype.
    """

    link: chainer.Link
    name: str
    label: str
    usual: str

    @property
    def value(self):
        """The variable, the array, or ``None``."""
        return vars(self.link).get(self.name)

    def unusual(self):
        """Returns its kind if it is not the usual one, or ``None``.

        Raises:
            TypeError: a function has computed the variable, and the backward pass would continue beyond it.
        """
        value = self.value
        if isinstance(value, chainer.Variable) and ("_node" not in vars(value) or value.creator_node is not None):
            raise TypeError(f"{self.label} is a computed variable, and the backward pass would continue beyond it")
        return None if (kind := _kind_of(value)) == self.usual else f"{self.label} {kind}"


class LinkStates(dict):
    """The states that were found in watched calls of the same work, by the id of the link and the name."""

    def unusual(self):
        """Returns a tuple of texts, empty if all states are of the kinds that they had in the calls that found them.

        Raises:
            TypeError: see :meth:`LinkState.unusual`.
        """
        return tuple(filter(None, map(LinkState.unusual, self.values())))

    def kept(self):
        """Returns the values of all states, for :meth:`restore`."""
        return {state: state.value for state in self.values()}

    def restore(self, values):
        """Gives links the values of :meth:`kept`, before a call that has failed is repeated."""
        for state, value in values.items():
            vars(state.link)[state.name] = value

    def look(self, links):
        """Returns the attributes that may be states, before a watched call.

        Args:
            links: dict from names to links.

        Returns:
            ``[(state, weak reference to its array or None, (address, bytes))]``
        """
        found = []
        for path, link in links.items():
            for name, value in vars(link).items():
                array = _array_in(value)
                if (array is None) == (value is None) and name not in link._persistent and not name.startswith(_OWN):
                    place = (0, 0) if array is None else (address_of(array), array.nbytes)
                    state = LinkState(link, name, f"{name} of {path}", _kind_of(value))
                    found.append((state, None if array is None else weakref.ref(array), place))
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
            The attributes that were ``None`` and are not, pairs of the id of a link and a name.
        """
        used = {start for _, start in uses(log, [place for _, _, place in before])}
        appears = {(id(x.link), x.name) for x, array, _ in before if array is None and _array_in(x.value) is not None}
        for state, array, place in before:
            key, now = (id(state.link), state.name), _array_in(state.value)
            if key in appears & appeared or (place[0] in used and (now is None or now is not array())):
                self.setdefault(key, state)
            if key in self:
                log.insert(0, Record("memory", "new", place))
        return appears


class StateBuffers:
    """Arrays that hold the states of links at the same addresses in each call of a graph.

    Args:
        states: :class:`LinkStates`.
        graphs: :class:`~mixprec.graph_capture.cuda_graphs.CupyGraphs` of the device.
    """

    def __init__(self, states, graphs):
        self._states, self._graphs = states, graphs
        self._buffers, self._starts, self._ends = {}, {}, {}  # by state; the last ones are values of the attributes

    def renew(self):
        """Makes buffers for the states that are known now; there is no graph with the old ones."""
        arrays = {state: _array_in(state.value) for state in self._states.values()}
        self._buffers = {state: self._graphs.empty_like(x) for state, x in arrays.items() if x is not None}
        self._starts = {state: _of_same_kind(state.value, self._buffers.get(state)) for state in arrays}

    def fill(self):
        """Brings the states into the buffers, before a launch or a comparison."""
        _move([(_array_in(state.value), buffer) for state, buffer in self._buffers.items()])

    def arrays(self):
        """Returns a dict of the buffers, which a call changes, by names for messages."""
        return {state.label: buffer for state, buffer in self._buffers.items()}

    def values(self):
        """Returns ``[(name, value)]`` of the states that the last run has left elsewhere."""
        return [(x.label, end) for x, end in self._ends.items() if _array_in(end) is not self._buffers.get(x)]

    @contextlib.contextmanager
    def in_place(self):
        """A context for a run that begins and ends with the states in the buffers; may be repeated.

        The run gets copies: what it keeps of a state from before it must not change when the buffer does.
        """
        copies = {state: buffer.copy(order="K") for state, buffer in self._buffers.items()}
        _put({state: _of_same_kind(start, copies.get(state)) for state, start in self._starts.items()})
        yield
        ends = {state: state.value for state in self._starts}
        fits = {x: buffer for x, buffer in self._buffers.items() if _kind_of(ends[x]) == _kind_of(self._starts[x])}
        self._ends = {state: _of_same_kind(end, fits.get(state, _array_in(end))) for state, end in ends.items()}
        _move([(_array_in(ends[state]), buffer) for state, buffer in fits.items()])
        self.leave()

    def leave(self):
        """Gives the links the states that the last run has left, after a launch."""
        _put(self._ends)


def _array_in(value):
    if isinstance(value, chainer.Variable):
        if isinstance(value, chainer.Parameter) or "_node" not in vars(value):  # deferred, not to be computed
            return None
        value = value.array
    return value if isinstance(value, chainer.get_array_types()) and value.size and not is_of_numpy(value) else None


def _kind_of(value):
    if (array := _array_in(value)) is None:
        return "None" if value is None else type(value).__name__
    return f"{type(value).__name__} {array.shape} {array.dtype}"


def _of_same_kind(value, array):
    """Returns an array as a new variable if the value is a variable; the value itself if there is no array."""
    if array is None or not isinstance(value, chainer.Variable):
        return value if array is None else array
    variable = chainer.Variable(array, name=value.name, requires_grad=value.requires_grad)
    vars(variable).update((name, note) for name, note in vars(value).items() if name.startswith(_OWN))
    return variable


def _put(values):
    for state, value in values.items():
        vars(state.link)[state.name] = _of_same_kind(value, _array_in(value))


def _move(pairs):
    """Copies arrays into others; they may have changed places."""
    pairs = [(source, target) for source, target in pairs if source is not target]
    places = {address_of(target) for _, target in pairs}
    for source, target in [(x.copy() if address_of(x) in places else x, target) for x, target in pairs]:
        if is_dense(source) and same_order(source, target):
            source, target = flat(source), flat(target)  # a single copy, see Verification
        target[...] = source

"""The attributes of Chainer that are replaced for converted models: attributes of links here, without calls of them.

``convert`` applies them, once in a process, and so does a converted link that is unpickled in another process. Links
and functions that are not converted take the original way: one look into an attribute, or into a thread-local, is all
that is added.
"""

import copy as copying

from mixprec.compat import whole
from mixprec.compat.registry import patch_around
from mixprec.functions import widening
from mixprec.precision import weight_copies, without_masters
from mixprec.precision.storage import in_float32
from mixprec.rewrite import dispatch, distributions, outside, parameters
from mixprec.rewrite.state import set_state, state_of

_WHEN = "mixprec.convert"


def install(link_class):
    """Replaces what the process has not replaced yet.

    Args:
        link_class: a class of converted links. The ``__call__`` that it inherits, usually that of
            :class:`chainer.Link`, is replaced where it is defined: another class for each link would change what users
            see of their model and what pickle finds.
    """
    owner = next(base for base in link_class.__mro__ if "__call__" in base.__dict__)
    dispatch.call.apply_to(owner, "__call__")
    functions = dispatch.apply, outside.operand, outside.backward_passes
    for each in (*functions, serialize, device_resident_accept, copy, *distributions.REPLACEMENTS):
        each.apply()
    weight_copies.install()
    whole.compute_by(dispatch.compute_whole)
    widening.install()
    without_masters.look_again()


@patch_around("chainer.link:Link.serialize", when=_WHEN)
def serialize(original, self, serializer):
    """Without it files of converted models are in 16 bits: links save and load float32 in Chainer's order of axes.

    A file of a converted model then looks like one of the plain model, and either loads into the other.
    """
    original(self, serializer if state_of(self) is None else in_float32(serializer))


@patch_around("chainer.link:Link.device_resident_accept", when=_WHEN)
def device_resident_accept(original, self, visitor):
    """Without it filters of converted links lose their order in memory on a new device.

    CuPy and NumPy copy arrays into the order of their axes. Processes that train together send raw memory, and so must
    have one order even of filters that some of them have not used.
    """
    original(self, visitor)
    state = state_of(self)
    if state is not None:
        parameters.order(self, state.conversion.policy.layout == "nhwc")


@patch_around("chainer.link:{Link,Chain,ChainList}.copy", "chainer.sequential:Sequential.copy", when=_WHEN)
def copy(original, self, mode="share"):
    """Without it a copy of a converted model is no model as a whole: its links convert inputs and results one by one.

    These methods copy a link at a time, and so would give each a conversion of its own. What is drawn anew has no FP32
    bits that were to be kept, and stays in 16 bits.
    """
    result = original(self, mode)
    states = [state_of(link) for link in self.links()]
    if any(states):
        states = states if mode == "share" else copying.deepcopy(states)
        for link, state in zip(result.links(), states, strict=True):
            set_state(link, state)
    if mode == "init":
        weight_copies.narrow(result.params())
    return result

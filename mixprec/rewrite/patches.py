"""Every attribute of Chainer that converted models replace: each function below makes a replacement of its original.

``convert`` installs them, and so does a converted link that is unpickled in another process. Links and functions that
are not converted take the original way: one look into an attribute, or into a thread-local, is all that is added.
"""

import functools

import chainer
from chainer.function_node import FunctionNode

from mixprec import without_masters
from mixprec.compat import whole
from mixprec.functions import widening
from mixprec.links.storage import in_float32
from mixprec.rewrite import dispatch, parameters
from mixprec.rewrite.scope import active, call_from_outside
from mixprec.rewrite.state import state_of
from mixprec.without_masters import CONVERSION


def install(link_class):
    """Replaces what the process has not replaced yet.

    Args:
        link_class: a class of converted links. The ``__call__`` that it inherits, usually that of
            :class:`chainer.Link`, is replaced where it is defined: another class for each link would change what users
            see of their model and what pickle finds.
    """
    owner = next(base for base in link_class.__mro__ if "__call__" in base.__dict__)
    _replace(owner, "__call__", call)
    _replace(chainer.Link, "serialize", serialize)
    _replace(chainer.Link, "device_resident_accept", device_resident_accept)
    _replace(FunctionNode, "apply", apply)
    for cls in _subclasses(FunctionNode):
        # mixprec.compat mends some losses in float16 by an `apply` of their own; converted models compute these in
        # float32 anyway.
        if "apply" in cls.__dict__ and cls.__module__.startswith("chainer."):
            _replace(cls, "apply", apply)
    whole.compute_by(dispatch.compute_whole)
    widening.install()
    without_masters.look_again()


def _replace(owner, name, make):
    # The mark is found through a wrapper around this one, such as that of the optimizer for `Link.serialize`:
    # functools.wraps copies it.
    original = owner.__dict__[name]
    if not hasattr(original, "looks_for_conversion"):
        replacement = functools.wraps(original)(make(original))
        replacement.looks_for_conversion = True
        setattr(owner, name, replacement)


def _subclasses(cls):
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def call(original):
    """For ``Link.__call__``: the outermost converted link runs under a scope, the others tell it where the model is."""

    def call(self, *args, **kwargs):
        state = self.__dict__.get(CONVERSION)
        if state is None:
            return original(self, *args, **kwargs)
        scope = active.scope
        if scope is None or scope.conversion is not state.conversion:
            return call_from_outside(state, functools.partial(original, self), args, kwargs)
        outer, scope.link = scope.link, state
        try:
            return original(self, *args, **kwargs)
        finally:
            scope.link = outer

    return call


def apply(original):
    """For ``FunctionNode.apply``, by which every function passes: while a converted model runs, a rule is applied."""

    def apply(self, inputs):
        scope = active.scope
        return original(self, inputs) if scope is None else dispatch.apply(scope, self, inputs)

    return apply


def serialize(original):
    """For ``Link.serialize``: converted links save and load float32, under Chainer's names and in its order of axes.

    A file of a converted model then looks like one of the plain model, and either loads into the other.
    """

    def serialize(self, serializer):
        original(self, serializer if state_of(self) is None else in_float32(serializer))

    return serialize


def device_resident_accept(original):
    """For ``Link.device_resident_accept``: converted links lay out their filters again on a new device.

    CuPy and NumPy copy arrays into the order of their axes. Processes that train together send raw memory, and so must
    have one order even of filters that some of them have not used.
    """

    def device_resident_accept(self, visitor):
        original(self, visitor)
        state = state_of(self)
        if state is not None:
            parameters.order(self, state.conversion.policy.layout == "nhwc")

    return device_resident_accept

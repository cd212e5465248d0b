"""Batch normalizations that wait for an addition and a ReLU, to be computed together with them.

A batch normalization in a converted model returns a variable that does not compute itself before somebody looks at it:
it is *deferred*. Adding to it, and a ReLU of it, is deferred as well; whatever else wants its array or its place in the
graph makes it compute all that it stands for, as one node. From then on it is a plain variable.

What is computed together is never known for its own: the input of the ReLU has no array and no gradient. So the first
call of a batch normalization is watched, and only if its result went into one ReLU, or into one addition and that into
one ReLU, and was dropped after that, later ones are deferred. Should another call do something else, results are still
right, since a deferred variable can be computed for its own even then, and its batch normalization is not deferred any
more.
"""

import weakref

import chainer

from mixprec.backends.announcements import announce
from mixprec.functions.relu import ReLU
from mixprec.rewrite.memory_order import channels_last, is_channels_last, run_in_order_of

RELU = "ReLU"
ADD_RELU = "add + ReLU"


class Site:
    """A batch normalization at one place in a model, in training or not.

    Attributes:
        fused: :data:`RELU` or :data:`ADD_RELU`, ``False`` if nothing can be, ``None`` as long as nobody knows.
        why: why nothing can be.
    """

    def __init__(self):
        self.fused = None
        self.why = ""

    def give_up(self, why):
        """Ends the fusion at this place."""
        self.fused, self.why = False, why


class Normalization:
    """A batch normalization that has not been computed.

    Args:
        x: variable, the input.
        rest: other inputs of the node, before what is added.
        build: function that makes the node of ``(relu, count)``; ``count`` says whether running statistics move.
        site: :class:`Site`, or ``None``.
        scope: :class:`~mixprec.rewrite.scope.Scope`.
    """

    def __init__(self, x, rest, build, site, scope):
        self.x = x
        self.site = site
        self.trace = scope.trace
        self.link = "" if scope.link is None else scope.link.name
        self.backprop = chainer.config.enable_backprop
        self.counted = False
        self._rest = rest
        self._build = build

    def compute(self, add=None, relu=False):
        """Applies the node, and returns its output. Running statistics move when it is done first."""
        node = self._build(relu, not self.counted)
        if self.trace is not None:
            fused = ADD_RELU if add is not None else RELU if relu else ""
            self.trace.note_normalization(self.link, fused)
        self.counted = True
        node.channels_first = is_channels_last(self.x)
        inputs = (self.x, *self._rest)
        return node.apply(inputs if add is None else (*inputs, add))[0]


class Deferred(chainer.Variable):
    """What a :class:`Normalization` will be, with an addition and a ReLU or without; see the text above.

    Args:
        normalization: :class:`Normalization`.
        source: ``None``, or the :class:`Deferred` to which there is added, or of which the ReLU is taken.
        add: ``None``, or the variable that is added to ``source``.
    """

    def __init__(self, normalization, source=None, add=None):
        # Not those of Chainer's constructor, which wants an array: _data and _node come when they are asked for.
        self.__dict__.update(_device=None, _grad_valid=True, _grad_var=None, _loss_scale=None)
        self.normalization = normalization
        self.source = source
        self.add = add
        inputs = (normalization.x, *normalization._rest) if add is None else (source, add)
        self._requires_grad = any(getattr(each, "requires_grad", False) for each in inputs)

    @property
    def shape(self):
        """That of the input of the batch normalization, as are the other attributes of this kind."""
        return self.normalization.x.shape

    @property
    def dtype(self):
        """See :attr:`shape`."""
        return self.normalization.x.dtype

    @property
    def ndim(self):
        """See :attr:`shape`."""
        return self.normalization.x.ndim

    @property
    def size(self):
        """See :attr:`shape`."""
        return self.normalization.x.size

    def __getattr__(self, name):
        if name in ("_data", "_node"):
            compute(self, "its value is asked for")
            return self.__dict__[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _copy_to(self, target):
        compute(self, "it is copied")
        return super()._copy_to(target)


def is_waiting(x):
    """Whether a variable is deferred and has not been computed."""
    return type(x) is Deferred


def compute(deferred, why):
    """Makes a deferred variable a plain one.

    Args:
        deferred: :class:`Deferred`.
        why: what for, if it is a batch normalization alone.
    """
    backprop = deferred.normalization.backprop
    if chainer.config.enable_backprop == backprop:
        result = _compute(deferred, why)
    else:
        with chainer.using_config("enable_backprop", backprop):
            result = _compute(deferred, why)
    # It becomes what nobody has seen yet.
    deferred.__class__ = chainer.Variable
    deferred.__dict__.clear()
    deferred.__dict__.update(result.__dict__)
    deferred._node._variable = weakref.ref(deferred)


def _compute(deferred, why):
    if deferred.source is None:
        return _alone(deferred.normalization, why)
    if deferred.add is not None:
        return _plain(deferred.source, why) + deferred.add
    return _relu(deferred.source)


def _plain(variable, why):
    if is_waiting(variable):
        compute(variable, why)
    return variable


def _alone(normalization, why):
    if normalization.counted:
        announce(
            "%s: a batch normalization is computed twice in one step, because its result is needed beside the ReLU "
            "with which it was fused; it will not be fused any more",
            normalization.link,
        )
    normalization.site.give_up(why)
    return normalization.compute()


def _relu(source):
    """Returns the ReLU of a variable that was deferred when it was taken."""
    normalization = source.normalization if is_waiting(source) else None
    if normalization is None or normalization.counted:
        return _relu_alone(_plain(source, "its ReLU is taken twice"))
    if source.add is None:
        return normalization.compute(relu=True)
    if not is_waiting(source.source):
        return _relu_alone(_plain(source, ""))
    add = source.add
    if add.ndim == 4:
        add = channels_last(add)
    return normalization.compute(add=add, relu=True)


def _relu_alone(x):
    return run_in_order_of(x, ReLU(), x)


def relu(scope, x):
    """Returns the ReLU of a deferred variable, deferred."""
    return _register(scope, Deferred(x.normalization, x))


def can_add(x, other):
    """Whether an addition to a deferred variable can wait for a ReLU."""
    return (
        is_waiting(x)
        and x.source is None
        and x.normalization.site.fused == ADD_RELU
        and isinstance(other, chainer.Variable)
        and other is not x
        and other.shape == x.shape
        and other.dtype == x.dtype
    )


def add(scope, x, other):
    """Returns the sum of a deferred variable and another one, deferred."""
    return _register(scope, Deferred(x.normalization, x, other))


def normalization(scope, x, rest, build):
    """Returns the result of a batch normalization: deferred, or computed and watched, as far as it is known.

    Args:
        scope: :class:`~mixprec.rewrite.scope.Scope`.
        x: variable in a storage dtype.
        rest: see :class:`Normalization`.
        build: see :class:`Normalization`.
    """
    site = scope.site()
    waiting = Normalization(x, rest, build, site, scope)
    if site is not None and site.fused:
        return _register(scope, Deferred(waiting))
    result = waiting.compute()
    if site is not None and site.fused is None:
        scope.watched[id(result)] = Watched(result, site)
    return result


def _register(scope, deferred):
    scope.deferred.append(weakref.ref(deferred))
    return deferred


class Watched:
    """The result of a batch normalization that is seen for the first time, or of an addition to one.

    Args:
        variable: it.
        site: :class:`Site`; ``None`` for the result of an addition.
    """

    def __init__(self, variable, site=None):
        self.variable = weakref.ref(variable)
        self.site = site
        self.consumers = []  # (name of a function node, the Watched of its output or None)


def watch(scope, name, inputs, outputs):
    """Notes who takes what is watched.

    Args:
        scope: :class:`~mixprec.rewrite.scope.Scope`.
        name: of the class of a function node.
        inputs: its inputs.
        outputs: its outputs.
    """
    found = [(scope.watched.get(id(x)), x) for x in inputs]
    taken = [watched for watched, x in found if watched is not None and watched.variable() is x]
    if not taken:
        return
    result = None
    if name == "Add" and inputs[0].shape == inputs[1].shape and inputs[0].dtype == inputs[1].dtype:
        result = scope.watched[id(outputs[0])] = Watched(outputs[0])
    for place, each in enumerate(taken):
        each.consumers.append((name, result if place == 0 else None))


def settle(scope):
    """Ends a call: computes what is still deferred and was kept, and decides on what was watched."""
    for reference in reversed(scope.deferred):
        deferred = reference()
        if deferred is not None and is_waiting(deferred):
            compute(deferred, "it is kept, or a result of the model")
    scope.deferred.clear()
    for watched in scope.watched.values():
        if watched.site is not None and watched.site.fused is None:
            _decide(watched)
    scope.watched.clear()


def _decide(watched):
    site, consumers = watched.site, watched.consumers
    if watched.variable() is not None:
        site.give_up("it is kept, or a result of the model")
    elif len(consumers) != 1:
        names = ", ".join(name for name, _ in consumers)
        site.give_up(f"it is used by {len(consumers)}: {names}" if consumers else "it is not used")
    elif consumers[0][0] == "ReLU":
        site.fused = RELU
    elif consumers[0][0] != "Add":
        site.give_up(f"{consumers[0][0]} follows")
    else:
        _decide_on_sum(site, consumers[0][1])


def _decide_on_sum(site, total):
    if total is None:
        site.give_up("it is added to another one, or broadcast")
    elif total.variable() is not None:
        site.give_up("a sum with it is kept, or a result of the model")
    elif [name for name, _ in total.consumers] == ["ReLU"]:
        site.fused = ADD_RELU
    else:
        names = ", ".join(name for name, _ in total.consumers) or "nothing"
        site.give_up(f"an addition follows, and then {names}")

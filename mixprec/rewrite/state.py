"""What a converted link knows of its conversion. It goes wherever the link goes: into copies, pickles and processes."""

from mixprec.without_masters import CONVERSION


class Conversion:
    """One call of :func:`mixprec.convert`; all links of the model share it.

    Args:
        policy: :class:`~mixprec.policy.Policy`.
        strict: whether a call that is looked at raises if a function stayed as it was.

    Attributes:
        watching: whether batch normalizations that are not known are watched, and not deferred.
        traced: how many calls in training mode have been looked at, see :mod:`mixprec.rewrite.trace`.
        findings: :class:`~mixprec.rewrite.trace.Findings` of the last of them, or ``None``.
    """

    def __init__(self, policy, strict=False):
        self.policy = policy
        self.strict = strict
        self.watching = False
        self.traced = 0
        self.findings = None


class LinkState:
    """One converted link.

    Args:
        conversion: :class:`Conversion`.
        name: path of the link in the model, ``/layer1/0/conv1``.
        kind: class of the link.
        before: ``{name: (dtype name, initializer)}`` of its own parameters, and of statistics in float16, before any
            conversion.

    Attributes:
        sites: :class:`~mixprec.rewrite.watching.Site` by ``(chainer.config.train, turn)``, turn counting the batch
            normalizations that are applied directly in this link during one call of the model.
        places: :class:`~mixprec.rewrite.sums.Place` of convolutions, likewise.
    """

    def __init__(self, conversion, name, kind, before):
        self.conversion = conversion
        self.name = name
        self.kind = kind
        self.before = before
        self.sites = {}
        self.places = {}

    def __setstate__(self, state):
        # A model that is unpickled in another process computes there as it did here.
        from mixprec.rewrite.install import install

        self.__dict__.update(state)
        install(self.kind)


def state_of(link):
    """Returns the :class:`LinkState` of a link, or ``None`` if it is not converted."""
    return link.__dict__.get(CONVERSION)


def set_state(link, state):
    """Makes a link a converted one, or a plain one with ``None``."""
    if state is None:
        link.__dict__.pop(CONVERSION, None)
    else:
        link.__dict__[CONVERSION] = state

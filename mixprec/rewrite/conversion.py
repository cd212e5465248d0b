"""The state that ``mixprec.convert`` leaves in each link of a model, and the conversion that all of them share.

``convert`` makes both, and a :class:`~mixprec.rewrite.scope.Scope` reads them while the model runs. Both go where the
links go: into copies, pickles and other processes.
"""

from mixprec.rewrite.replacements import install


class Conversion:
    """One call of :func:`mixprec.convert`.

    Args:
        policy: :class:`~mixprec.precision.policy.Policy`.
        strict: whether a traced call raises if a function stayed as it was.

    Attributes:
        on_example: whether ``convert`` is calling the model on its example; a second computation is no news then.
        traced: how many calls in training mode have been traced, see :mod:`mixprec.rewrite.trace`.
        lost_weights: list of texts, one for each parameter that 16 bits cannot hold, or whose small steps they cannot.
        findings: :class:`~mixprec.rewrite.trace.Findings` of the last of them, or ``None``.
    """

    def __init__(self, policy, strict=False):
        self.policy = policy
        self.strict = strict
        self.on_example = False
        self.traced = 0
        self.lost_weights = []
        self.findings = None


class LinkState:
    """One converted link.

    Args:
        conversion: :class:`Conversion`.
        name: path of the link in the model, ``/layer1/0/conv1``.
        kind: class of the link.
        before: ``{name: (dtype name, initializer)}`` of its own parameters, and of statistics in float16, before any
            conversion.
        keeps_float32: whether it stays in float32, with all that runs in a call of it.

    Attributes:
        sites: :class:`~mixprec.rewrite.places.NormalizationPlace` by ``(chainer.config.train, turn)``; ``turn``
            counts the batch normalizations that the link itself applies during one call of the model.
        places: :class:`~mixprec.rewrite.places.ConvolutionPlace`, likewise.
    """

    def __init__(self, conversion, name, kind, before, keeps_float32=False):
        self.conversion = conversion
        self.name = name
        self.kind = kind
        self.before = before
        self.keeps_float32 = keeps_float32
        self.sites = {}
        self.places = {}

    def __setstate__(self, state):
        # A model that is unpickled in another process computes there as it did here.
        self.__dict__.update(state)
        install(self.kind)

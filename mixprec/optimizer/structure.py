"""The links and parameters of a model, without a walk through it at every step."""

import operator

import chainer
from chainer import ChainList, Link

_WALKS = ("params", "namedparams", "links", "children")
_CHAINERS = [{getattr(kind, name) for kind in (Link, chainer.Chain, ChainList)} for name in _WALKS]


class Structure:
    """What ``model.links()`` and ``model.namedparams()`` give, walked anew only if it may be something else by now.

    A walk through a ResNet-50 takes as long as the whole batched update of its parameters on the host. What such a walk
    looks at are the registered names of every link and what is behind them; whether these are the same is asked in a
    fraction of that time. A link with a walk of its own (a user's ``namedparams``) is walked every time.

    Args:
        model: the link.

    Attributes:
        namedparams: ``[(name, parameter)]`` of the model at the last :meth:`refresh`, uninitialized ones among them, a
            shared one as often as Chainer would give it.
        params: the parameters of :attr:`namedparams`.
        links: the links of the model at that time, itself among them; a new list if they were walked anew.
    """

    def __init__(self, model):
        self._model = model
        self._walk()

    def refresh(self):
        """Looks whether parameters were added, removed or replaced; returns whether they were."""
        if self._unchanged():
            return False
        before = self.params
        self._walk()
        return len(before) != len(self.params) or not all(map(operator.is_, before, self.params))

    def _unchanged(self):
        return (
            not self._walks_its_own_way
            and self._names == self._names_before
            and all(map(operator.is_, map(dict.get, self._attributes, self._attribute_names), self._values))
        )

    def _walk(self):
        self.links = list(self._model.links())
        self.namedparams = list(self._model.namedparams())
        self.params = [param for _, param in self.namedparams]
        self._walks_its_own_way = any(
            getattr(type(link), name) not in known
            for link in self.links
            for name, known in zip(_WALKS, _CHAINERS, strict=True)
        )
        self._names, self._attributes, self._attribute_names = [], [], []
        for link in self.links:
            by_name = set(link._params)
            self._names.append(link._params)
            if (children := getattr(link, "_children", None)) is not None:
                self._names.append(children)
                if not isinstance(link, ChainList):
                    by_name |= children
            self._attributes += [link.__dict__] * len(by_name)
            self._attribute_names += by_name
        self._names_before = [names.copy() for names in self._names]
        self._values = [values[name] for values, name in zip(self._attributes, self._attribute_names, strict=True)]

"""What follows a batch normalization: its result is watched in a call on an example, and deferred after it, or not."""

import weakref

RELU = "ReLU"
ADD_RELU = "add + ReLU"

_KEPT = "it is kept, or a result of the model"


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


class Watched:
    """What is watched in one call: results of batch normalizations, and of additions to them."""

    def __init__(self):
        self._by_id = {}
        self._normalizations = []  # as well, since the next variable may get the id of one that is gone

    def __bool__(self):
        return bool(self._by_id)

    def add(self, variable, site=None):
        """Watches a variable.

        Args:
            variable: the result of a batch normalization, or of an addition to one.
            site: :class:`Site` of the former, ``None`` for the latter.
        """
        result = self._by_id[id(variable)] = _Result(variable, site)
        if site is not None:
            self._normalizations.append(result)
        return result

    def look(self, name, inputs, outputs):
        """Notes who takes what is watched.

        Args:
            name: of the class of a function node.
            inputs: its inputs.
            outputs: its outputs.
        """
        found = [(self._by_id.get(id(x)), x) for x in inputs]
        taken = [result for result, x in found if result is not None and result.variable() is x]
        if not taken:
            return
        total = None
        if name == "Add" and inputs[0].shape == inputs[1].shape and inputs[0].dtype == inputs[1].dtype:
            total = self.add(outputs[0])
        for place, each in enumerate(taken):
            each.consumers.append((name, total if place == 0 else None))

    def decide(self):
        """Ends the call: gives all sites their ``fused``, and forgets what was watched."""
        for result in self._normalizations:
            if result.site.fused is None:
                _decide(result)
        self._by_id.clear()
        self._normalizations.clear()


class _Result:
    def __init__(self, variable, site):
        self.variable = weakref.ref(variable)
        self.site = site
        self.consumers = []  # (name of a function node, the _Result of its output or None)


def _decide(result):
    site, consumers = result.site, result.consumers
    if result.variable() is not None:
        site.give_up(_KEPT)
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

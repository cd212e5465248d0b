"""Finds the layers that can be computed in one pass over memory, from the graph of any network."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Normalization:
    """A batch normalization, and what can be computed in the pass that applies it.

    Attributes:
        layer: index of the batch normalization.
        relu: index of the ReLU of its result, or of the sum; ``None`` if there is none.
        add: index of the addition between them, ``None`` if there is none.
        added: index of the layer whose output is added, ``None`` if there is none.
    """

    layer: int
    relu: int | None = None
    add: int | None = None
    added: int | None = None

    @property
    def output(self):
        """Index of the layer whose output the pass writes."""
        return self.layer if self.relu is None else self.relu


def readers_of(layers):
    """Returns for each layer the indices of those that read its output, in order; twice what reads it twice."""
    readers = [[] for _ in layers]
    for index, layer in enumerate(layers):
        for source in layer.sources:
            if source is not None:
                readers[source].append(index)
    return readers


def normalizations(layers):
    """Finds BN, BN + ReLU and BN + add + ReLU, where nothing else reads what lies between.

    Of two batch normalizations that are added, the first is the one that the addition and the ReLU belong to.

    Args:
        layers: tuple of :class:`~benchmarks.roofline.network_layers.Layer`.

    Returns:
        dict from indices of batch normalizations to :class:`Normalization`
    """
    readers, found, taken = readers_of(layers), {}, set()

    def only_reader(index, kind):
        reader = readers[index][0] if len(readers[index]) == 1 else None
        return reader if reader is not None and layers[reader].kind == kind else None

    for index, layer in enumerate(layers):
        if layer.kind != "batch_normalization":
            continue
        relu, add = only_reader(index, "relu"), only_reader(index, "add")
        found[index] = Normalization(index, relu)
        if add is not None and add not in taken:
            relu = only_reader(add, "relu")
            others = [source for source in layers[add].sources if source != index]
            if relu is not None and len(others) == 1 and others[0] is not None:
                taken.add(add)
                found[index] = Normalization(index, relu, add, others[0])
    return found


class Fusion:
    """What is computed where in a training step.

    Args:
        layers: tuple of :class:`~benchmarks.roofline.network_layers.Layer`.
        pointwise: whether additions and ReLUs are computed with the batch normalization before them.
        forward: whether convolutions take the statistics of what they write, normalize what they read, and add the
            other gradients of their input in dgrad.
        backward: whether dgrad takes the sums that the backward pass of a batch normalization needs.

    Attributes:
        readers: of each layer, see :func:`readers_of`.
        needs_gradient: for each layer whether anything before it learns.
        normalizations: dict from indices of batch normalizations to :class:`Normalization`.
        absorbed: indices of additions and ReLUs that are no kernel of their own.
        in_epilogue: batch normalizations whose statistics the convolution before them takes.
        in_prologue: batch normalizations that each reader applies, so that their result is never written.
        summed: dict from layers to the number of arrays that a kernel adds up to the gradient of their output.
        accumulating: convolutions whose dgrad adds to an array that is there.
        reducing: dict from convolutions to the batch normalizations for which their dgrad takes sums.
    """

    def __init__(self, layers, *, pointwise, forward, backward):
        self.readers = readers_of(layers)
        self.needs_gradient = _needs_gradient(layers)
        self.normalizations = {
            index: each if pointwise else Normalization(index) for index, each in normalizations(layers).items()
        }
        units = self.normalizations.values()
        self.absorbed = {place for unit in units if unit.relu is not None for place in (unit.add, unit.relu)} - {None}
        self.in_epilogue, self.in_prologue = set(), set()
        if forward:
            self.in_epilogue = {
                index for index in self.normalizations if _is_convolution(layers, layers[index].sources[0])
            }
            self.in_prologue = {unit.layer for unit in units if self._applied_by_readers(layers, unit)}
        self.summed, self.accumulating = {}, set()
        for index, layer in enumerate(layers):
            if self.needs_gradient[index] and len(layer.outputs) == 1:
                self._sum(layers, index, forward)
        self.reducing = {}
        if backward:
            for unit in units:
                self._reduce(layers, unit)

    def _applied_by_readers(self, layers, unit):
        readers = self.readers[unit.output]
        return unit.add is None and all(_is_convolution(layers, each) or each in self.absorbed for each in readers)

    def _sum(self, layers, index, forward):
        readers = self.readers[index]
        accumulating = [each for each in readers if forward and layers[each].kind == "convolution"][: len(readers) - 1]
        self.accumulating.update(accumulating)
        if len(readers) - len(accumulating) > 1:
            self.summed[index] = len(readers) - len(accumulating)

    def _reduce(self, layers, unit):
        """Sums of a normalization, and of another one that is added to it, are for the dgrad that ends last."""
        convolutions = [each for each in self.readers[unit.output] if layers[each].kind == "convolution"]
        if convolutions and unit.output not in self.summed:
            both = unit.added in self.normalizations and self.readers[unit.added] == [unit.add]
            self.reducing[convolutions[0]] = (unit.layer, unit.added) if both else (unit.layer,)

    @property
    def reduced(self):
        """Batch normalizations whose sums dgrad takes."""
        return {index for found in self.reducing.values() for index in found}


def _is_convolution(layers, index):
    return index is not None and layers[index].kind == "convolution"


def _needs_gradient(layers):
    needs = []
    for layer in layers:
        needs.append(layer.has_parameters or any(source is not None and needs[source] for source in layer.sources))
    return needs

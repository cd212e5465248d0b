"""``mixprec.KFAC``: multiplies gradients by an approximate inverse of the Fisher matrix, before hooks and update.

:class:`~mixprec.MixedPrecisionOptimizer` calls :meth:`KFAC.collecting` around each backward pass of a step,
:meth:`KFAC.run` when gradients are there, :meth:`KFAC.keep` when it has decided whether the step is skipped, and
:meth:`KFAC.over` at the end.
"""

import contextlib
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import chainer
import numpy as np

from mixprec.backends import primitives_of
from mixprec.backends.transfers import on_host
from mixprec.base import arguments
from mixprec.functions.layer_gradients import observing
from mixprec.kfac import layer_report, multiplication, saved_layers, sharing
from mixprec.kfac.collector import Collector
from mixprec.kfac.device_numbers import DeviceNumbers
from mixprec.kfac.refreshes import INVERSES, PLAIN, Refreshes


class KFAC:
    """Kronecker-factored curvature (Martens and Grosse 2015, arXiv:1503.05671), a preconditioner for an optimizer.

    The gradient of a linear layer or a convolution (any stride, padding, dilation; separately for each group) becomes
    ``G^-1 gradient A^-1``, where A and G are moving averages of the second moments of its input patches and of the
    gradients of its outputs. The gradient of a batch normalization is multiplied by the inverse of a 2 x 2 matrix for
    each channel. The gradients of all other parameters do not change; :meth:`report` names them. Then come hooks, such
    as weight decay, and the update of the wrapped optimizer. All of this is in float32, computed from activations and
    gradients in the dtype of the model. The loss must be a mean over the batch.

    Layers are preconditioned if :mod:`mixprec.functions` computes them: in models that :func:`mixprec.convert` has
    converted, also to float32, and in :mod:`mixprec.links`.

    Example:
        >>> import chainer, chainer.functions as F, chainer.links as L, numpy as np
        >>> import mixprec
        >>> model = L.Linear(3, 2)
        >>> kfac = mixprec.KFAC(damping=0.01)
        >>> sgd = chainer.optimizers.MomentumSGD(lr=0.1)
        >>> optimizer = mixprec.MixedPrecisionOptimizer(sgd, preconditioner=kfac).setup(model)
        >>> report = mixprec.convert(model)
        >>> x = np.random.RandomState(0).randn(8, 3).astype(np.float32)
        >>> optimizer.update(lambda: F.mean(model(x) ** 2))
        >>> print(kfac.report())
        1 layer: 1 by the moments of inputs and outputs, 0 batch normalizations; the largest matrix is 4 x 4

    Args:
        damping: number that is added to the diagonal of the Fisher matrix; with a larger value the result is closer to
            the plain gradient. The attributes ``damping`` and ``kl_clip`` may be set between steps.
        norm_damping: factor on the damping for batch normalizations, which need more (16 to 64 in Osawa et al. 2019).
        decay: decay of the moving averages in a step that updates them.
        kl_clip: upper limit for ``lr^2`` times the sum of the products of gradients before and after; gradients are
            scaled down to meet it (Ba et al. 2017, section 5). ``None`` for no limit.
        factor_every: second moments are computed every this many steps; in other steps they cost nothing.
        inverse_every: inverses are computed every this many steps, a multiple of ``factor_every``.
        largest: largest number of rows of a matrix; layers with a larger one are not preconditioned.

    Raises:
        ValueError: an argument is not a number, or out of its range.
    """

    def __init__(
        self,
        damping: float = 0.01,
        *,
        norm_damping: float = 64.0,
        decay: float = 0.95,
        kl_clip: float | None = None,
        factor_every: int = 1,
        inverse_every: int = 1,
        largest: int = 8192,
    ) -> None:
        self.damping: float = damping
        self.kl_clip: float | None = kl_clip
        self._check()
        self._norm_damping = _positive("norm_damping", norm_damping)
        self._decay = arguments.number("decay", decay, 0.0, 1.0)
        factor_every = arguments.whole("factor_every", factor_every, 1)
        inverse_every = arguments.whole("inverse_every", inverse_every, 1)
        if inverse_every % factor_every:
            raise ValueError(
                f"inverse_every must be a multiple of factor_every; found {inverse_every} and {factor_every}"
            )
        self._refreshes = Refreshes(factor_every, inverse_every)
        self._owner = None
        self._collector = Collector(arguments.whole("largest", largest, 1))
        every = {"factor_every": factor_every, "inverse_every": inverse_every}
        self._fixed = {"norm_damping": norm_damping, "decay": self._decay, **every, "largest": largest}
        self._ranks = self._index = None
        self._numbers = DeviceNumbers()
        self._forget()

    def attach(self, owner: Any, index: Any, ranks: Any = None) -> None:
        """Attaches it to a model; called by the wrapper's ``setup``.

        Args:
            owner: the wrapper.
            index: :class:`~mixprec.optimizer.model_index.ModelIndex`.
            ranks: :class:`~mixprec.optimizer.ranks.Ranks`, or ``None``.

        Raises:
            ValueError: it has been set up with another optimizer or model.
        """
        if self._index is not None and self._index is not index:
            if self._index.model is not index.model or self._owner() is not owner:
                raise ValueError("a KFAC is for one optimizer and one model: make a new one")
            self.reset()
        self._owner = weakref.ref(owner)
        self._index, self._ranks = index, ranks
        self._collector.of(index)

    @property
    def kind(self) -> int:
        """Kind of the next step: 0 plain, 1 with new second moments, 2 also with new inverses."""
        return self._refreshes.kind

    @property
    def variant(self) -> Any:
        """A value that determines the launches of the next step: each value has a CUDA graph of its own."""
        return self.kind, self.kl_clip is None

    @property
    def largest(self) -> int:
        """Largest number of rows of a matrix; layers with a larger one are not preconditioned."""
        return self._collector.largest

    def report(self) -> str:
        """Returns a text that says which layers are preconditioned, and which parameters are not."""
        return layer_report.text(self._collector, self._index)

    @property
    def settings(self) -> dict[str, Any]:
        """The current arguments, which must be the same on all ranks."""
        return {"damping": self.damping, "kl_clip": self.kl_clip, **self._fixed}

    @property
    def _layers(self):
        """The layers in the order of their names, the same on all ranks."""
        return [layer for _, layer in sorted(self._collector.layers.items())]

    @property
    def _transport(self):
        return None if self._ranks is None else self._ranks.transport

    # --- a step

    def begin(self) -> None:
        """Begins a step, before its first backward pass."""
        self._forget()
        self._is_begun = True
        if self.kind != PLAIN:
            self._index.refresh()
            self._collector.begin()

    @contextlib.contextmanager
    def collecting(self, factor: Any) -> Any:
        """A context for the backward pass of a loss that was multiplied by ``factor``, a float32 array of shape ()."""
        if self.kind == PLAIN:
            yield
        else:
            self._factor = factor
            self._collector.begin_pass()
            with observing(self._collector):
                yield

    def run(self, masters: Any, optimizer: Any, unscaled: Any) -> set[int]:
        """Multiplies the gradients of layers, and leaves them in the masters.

        Args:
            masters: ``[(name, parameter, master)]`` of the initialized parameters.
            optimizer: Chainer's optimizer, whose learning rate ``kl_clip`` needs.
            unscaled: ``unscaled(name, param, master)`` writes the unscaled gradient of a parameter into its master.

        Returns:
            Ids of the parameters whose masters have their gradients; empty if a gradient on NumPy is not finite, which
            the check then finds.

        Raises:
            ValueError: no layer can be preconditioned, the damping is too small for float32, or layers differ between
                ranks.
        """
        self._check()
        if self.kind != PLAIN and not self._is_begun:
            self.begin()  # the user wrote the gradients, or they come from a pass that was not seen
        by_name = {name: (name, param, master) for name, param, master in masters if param.grad is not None}
        self._look_for_new(bool(by_name))
        takes_new = self.kind == INVERSES
        layers = multiplication.learning(self._layers, by_name, takes_new)
        if not layers:
            if takes_new:
                self._refreshes.restart()  # nothing is inverted
            return set()
        for _, parameters in layers:
            for each in parameters:
                unscaled(*each)
        gradients = (master.grad for _, parameters in layers for _, _, master in parameters)
        if not all(np.isfinite(gradient).all() for gradient in gradients if on_host(gradient)):
            return set()
        counts = layers[0][0].counts
        self._numbers.take(self._values(optimizer), counts)
        primitives = primitives_of(counts)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            if self.kind != PLAIN and not self._is_averaged:  # an update has failed since then
                sharing.average(self._layers, self._transport, self._decay, self._factor)
                self._is_averaged = True
            if takes_new:
                damping = self._numbers.arrays["damping"]
                sharing.invert(self._layers, self._transport, primitives, damping, self._norm_damping)
            multiplication.multiply(layers, primitives, self._numbers.arrays, takes_new)
        self._has_run = True
        return {id(param) for _, parameters in layers for _, param, _ in parameters}

    def keep(self, skip: Any) -> None:
        """Keeps the results of the step, unless it is skipped.

        Args:
            skip: a bool, or a boolean array of shape () on a device, which is not read.
        """
        if self._has_run and self.kind != PLAIN:
            for layer in self._layers:
                layer.keep(skip, self.kind == INVERSES)

    def over(self, skip: Any) -> None:
        """Ends a step; called once for each, even if a capture has computed it several times.

        Args:
            skip: as for :meth:`keep`.
        """
        self._refreshes.over(skip)
        self._forget()

    # --- for captured steps

    def capturing(self) -> Any:
        """A context for a step that a graph captures: numbers on the device are not written."""
        return self._numbers.fixed()

    def refresh(self, optimizer: Any) -> None:
        """Writes damping and learning rate to the device, before a graph reads them."""
        self._check()
        self._numbers.refresh(self._values(optimizer))

    def state(self) -> dict[str, Any]:
        """Returns a dict of the arrays that a step changes, by names for messages."""
        return {
            f"array {number} of K-FAC of {name}": array
            for name, layer in self._collector.layers.items()
            for number, array in enumerate(layer.moved)
        }

    def held(self) -> list[Any]:
        """Returns the arrays whose addresses a graph contains."""
        return [*self._numbers.arrays.values(), *(array for layer in self._layers for array in layer.arrays)]

    # --- snapshots

    def serialize(self, serializer: chainer.AbstractSerializer) -> Callable[[], None]:
        """Saves or reads averages, inverses and the state of the schedule.

        A file without them, such as of an optimizer without K-FAC, is read with a warning, and everything starts
        afresh.

        Args:
            serializer: Chainer serializer, the wrapper's part of it.

        Returns:
            A function that applies the data that was read. It cannot fail; until it is called nothing has changed.

        Raises:
            ValueError: the file has a layer of a parameter that the model does not have, or has in another shape.
        """
        serializer = serializer["kfac"]
        if not isinstance(serializer, chainer.Deserializer):
            saved_layers.save(self._collector.layers, serializer)
            self._refreshes.serialize(serializer, False)
            return lambda: None
        self._index.refresh()
        layers = saved_layers.load(serializer, dict(self._index.namedparams))

        def take() -> None:
            self.reset()
            if layers is None:
                warnings.warn("the snapshot has no matrices of K-FAC: they start afresh", stacklevel=4)
            else:
                self._collector.layers = layers
                self._refreshes.serialize(serializer, True)

        return take

    def reset(self) -> None:
        """Resets everything, as if there had been no step."""
        self._collector.layers.clear()
        self._collector.too_large.clear()
        self._collector.has_new = False
        self._refreshes = Refreshes(self._fixed["factor_every"], self._fixed["inverse_every"])
        self._forget()

    def _check(self):
        _positive("damping", self.damping)
        if self.kl_clip is not None:
            _positive("kl_clip", self.kl_clip, ", or None")

    def _values(self, optimizer):
        """Returns the numbers that may change in each step."""
        if self.kl_clip is None:
            return {"damping": self.damping}
        numbers = optimizer.hyperparam.get_dict()
        rate = numbers.get("lr")  # RMSprop's alpha is not a rate; Adam has no lr
        if rate is None and "alpha" in numbers:
            rate = numbers["alpha"] * numbers.get("eta", 1.0)
        if rate is None:
            raise ValueError(f"kl_clip needs a learning rate, and {type(optimizer).__name__} has none")
        return {"damping": self.damping, "kl_clip": self.kl_clip, "lr": rate}

    def _forget(self):
        self._is_begun = self._is_averaged = self._has_run = False
        self._factor = None

    def _look_for_new(self, has_gradients):
        collector = self._collector
        if self.kind == PLAIN or self._numbers.is_fixed:  # a capture cannot communicate; the previous step has checked
            return
        if sharing.look_for_new(sorted(collector.layers), collector.has_new, self._transport):
            collector.has_new = False
            self._refreshes.restart()
        if has_gradients:
            collector.check_found()

    def __getstate__(self):
        return {**self.__dict__, "_owner": None, "_index": None, "_ranks": None, "_numbers": DeviceNumbers()}


def _positive(name, value, other=""):
    """Returns an argument as a float, which must be above 0; ``other`` names other allowed values in the message."""
    number = arguments.number(name, value)
    if not number > 0:
        raise ValueError(f"{name} must be above 0{other}; found {value!r}")
    return number

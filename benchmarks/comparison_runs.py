"""Steps of a training run on NumPy that are repeated from the same state, also with the faults of a graph.

They stand for eager steps and for launches. What varies from run to run on a GPU is the order of sums: here the
statistics of each batch have a relative error of 2^-23. All steps are on one batch, which the network learns by heart:
late in such a run gradients are little but noise.
"""

import contextlib
import copy

import numpy as np

from benchmarks import configured
from mixprec.backends import primitives_of
from models import MODELS

NOISE = 2.0**-23
SKIPPED = "last_step_skipped"
_LOUD = 2.0**-10


class Sums:
    """Statistics of batches on NumPy as if their sums had another order in each run, inside of :meth:`varying`.

    Attributes:
        noise: relative to the standard deviation and to the variance.
        loud: number of the batch normalization that has a noise of 2^-10, or ``None``.
        count: number of batch normalizations in this run so far.
    """

    def __init__(self, seed):
        self.noise, self.loud, self.count = NOISE, None, 0
        self._random = np.random.default_rng(seed)

    @contextlib.contextmanager
    def varying(self):
        """The context."""
        kind = type(primitives_of(np.empty(0)))
        plain = kind._moments
        kind._moments = self._noisy(plain)
        try:
            yield
        finally:
            kind._moments = plain

    def _noisy(self, plain):
        def moments(primitives, x):
            mean, variance = plain(primitives, x)
            noise = _LOUD if self.count == self.loud else self.noise
            self.count += 1
            mean_error, variance_error = noise * self._random.standard_normal((2, *mean.shape))
            moved = mean + np.sqrt(variance) * mean_error
            return moved.astype(mean.dtype), (variance * (1 + variance_error)).astype(variance.dtype)

        return moments


class _Constant:
    """An iterator that gives the same batch each time, and is another iterator otherwise."""

    def __init__(self, iterator, batch):
        self._iterator, self.next = iterator, batch

    def __getattr__(self, name):
        return getattr(self._iterator, name)


class Training:
    """A training run on NumPy whose steps can be repeated from the same state, also with a fault.

    Args:
        arch: name of the network.
        size: height and width of an image in pixels.
        batch: number of images.
        lr: learning rate of SGD with momentum.
        seed: of weights, batches and noise.

    Attributes:
        steps: that are done.
        sums: :class:`Sums`.
    """

    def __init__(self, arch, *, size, batch, lr, seed=0):
        np.random.seed(seed)
        overrides = [f"optimizer.lr={lr}", "optimizer.base_batch_size=null"]
        config = configured.load("static_graph.yaml", arch=arch, batch=batch, size=size, overrides=overrides)
        self._updater = configured.updater_of(config, MODELS[arch], "@numpy")
        self._optimizer = self._updater.get_optimizer("main")
        batches = self._updater.get_iterator("main")
        self._batch = batches.next()
        images, labels = self._batch
        self._other_batch = np.roll(images, 1, axis=1)[::-1].copy(), np.roll(labels, 1)
        self._updater._iterators["main"] = _Constant(batches, lambda: self._batch)
        self.sums, self.steps = Sums(seed + 1), 0

    def advance(self, target):
        """Trains up to a number of steps."""
        while self.steps < target:
            self._updater.update()
            self.steps += 1

    def begin(self):
        """Begins with repetitions from the state as it is, which ``before`` holds from then on, a dict of arrays."""
        arrays = {}
        for name, param, master in self._optimizer._masters.all_current():
            arrays |= {name: param.array, f"the master of {name}": master.array}
            arrays |= {f"{key} of {name}": value for key, value in (param.update_rule.state or {}).items()}
        for name, link in self._optimizer.target.namedlinks():
            arrays |= {f"{key} of {name}": link.__dict__[key] for key in link._persistent}
        self._arrays = {name: array for name, array in arrays.items() if isinstance(array, np.ndarray)}
        self.before = {name: array.copy() for name, array in self._arrays.items()} | {SKIPPED: np.array(False)}
        self._scale = copy.deepcopy(vars(self._optimizer._scaler))

    def end(self):
        """Ends with repetitions, by a step that counts."""
        self._turn_back()
        self.advance(self.steps + 1)

    def run(self, fault=None):
        """Repeats the step from the same state; returns what it leaves, a dict of arrays."""
        self._turn_back()
        self.sums.count = 0
        with fault(self) if fault is not None else contextlib.nullcontext(lambda found: None) as spoil:
            self._updater.update()
            found = {name: array.copy() for name, array in self._arrays.items()}
            found[SKIPPED] = np.array(self._optimizer.last_step_skipped)
            spoil(found)
        return found

    def _turn_back(self):
        for name, array in self._arrays.items():
            array[...] = self.before[name]
        vars(self._optimizer._scaler).update(copy.deepcopy(self._scale))

    # The faults: contexts for a step, which give what spoils its results.

    @property
    def _middle(self):
        """Name of a filter in the middle of the network."""
        filters = [name for name, value in self.before.items() if name.startswith("v of ") and value.ndim == 4]
        return filters[len(filters) // 2].removeprefix("v of ")

    def _like(self, name):
        """Name of another array of the same kind and shape."""
        kind = name.partition(" of ")[0]
        others = (each for each in self.before if each.startswith(f"{kind} of ") and each != name)
        return next(each for each in others if self.before[each].shape == self.before[name].shape)

    def _spoil_gradient(self, found, name, factor):
        """CorrectedMomentumSGD: v' = momentum * v - gradient, w' = w + lr * v'; the gradient has decay in it."""
        v, lr = f"v of {name}", np.float32(self._optimizer.lr)
        kept = np.float32(self._optimizer.momentum) * self.before[v]
        found[v] = kept + np.float32(factor) * (found[v] - kept)
        found[f"the master of {name}"] = self.before[f"the master of {name}"] + lr * found[v]

    @contextlib.contextmanager
    def gradient_left_out(self):
        yield lambda found: self._spoil_gradient(found, self._middle, 0)

    @contextlib.contextmanager
    def scale_twice(self):
        def spoil(found):
            for name in [name.removeprefix("v of ") for name in found if name.startswith("v of ")]:
                self._spoil_gradient(found, name, 1 / self._optimizer.loss_scale)

        yield spoil

    @contextlib.contextmanager
    def statistic_not_updated(self):
        means = [name for name in self.before if name.startswith("avg_mean")]
        yield lambda found: found.update({means[len(means) // 2]: self.before[means[len(means) // 2]]})

    @contextlib.contextmanager
    def momentum_of_another(self):
        name = f"v of {self._middle}"
        self._arrays[name][...] = self.before[self._like(name)]
        yield lambda found: None

    @contextlib.contextmanager
    def stale_input(self):
        batch, self._batch = self._batch, self._other_batch
        yield lambda found: None
        self._batch = batch

    @contextlib.contextmanager
    def rate_not_followed(self):
        lr = self._optimizer.lr
        self._optimizer.lr = lr / 2
        yield lambda found: None
        self._optimizer.lr = lr

    @contextlib.contextmanager
    def loud_layer(self):
        self.sums.loud = sum(name.startswith("avg_mean") for name in self.before) // 2
        yield lambda found: None
        self.sums.loud = None


FAULTS = {
    "a gradient is left out": Training.gradient_left_out,
    "the loss scale is taken out twice": Training.scale_twice,
    "a running mean is not updated": Training.statistic_not_updated,
    "the momentum of another parameter is used": Training.momentum_of_another,
    "the batch of another step is used": Training.stale_input,
    "half the learning rate is used": Training.rate_not_followed,
    "a layer's statistics have a noise of 2^-10": Training.loud_layer,
}

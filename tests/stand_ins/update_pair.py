"""A wrapped optimizer beside one of plain Chainer, for comparisons bit for bit.

The plain one has an FP32 parameter for every FP16 or BF16 one, and the others as they are. It gets the same gradients,
unscaled, and no call of ``update()`` in a step that overflows. Nothing of this package is in its way.
"""

import chainer
import numpy as np
from chainer import optimizers

import mixprec
from mixprec.base.dtypes import is_half

# Hyperparameters that are no short binary fractions, so that every rounding counts.
_ADAM = {"alpha": 0.013, "beta1": 0.87, "beta2": 0.983, "eps": 3e-7}
_BOUND = {**_ADAM, "final_lr": 0.07, "gamma": 0.03}
RULES = {
    "SGD": (optimizers.SGD, {"lr": 0.037}),
    "MomentumSGD": (optimizers.MomentumSGD, {"lr": 0.037, "momentum": 0.87}),
    "CorrectedMomentumSGD": (optimizers.CorrectedMomentumSGD, {"lr": 0.037, "momentum": 0.87}),
    "NesterovAG": (optimizers.NesterovAG, {"lr": 0.037, "momentum": 0.87}),
    "AdaGrad": (optimizers.AdaGrad, {"lr": 0.037, "eps": 3e-7}),
    "AdaDelta": (optimizers.AdaDelta, {"rho": 0.93, "eps": 3e-5}),
    "RMSprop": (optimizers.RMSprop, {"lr": 0.013, "alpha": 0.93, "eps": 3e-7}),
    "RMSprop, eps inside": (optimizers.RMSprop, {"lr": 0.013, "alpha": 0.93, "eps": 3e-3, "eps_inside_sqrt": True}),
    "RMSpropGraves": (optimizers.RMSpropGraves, {"lr": 0.013, "alpha": 0.93, "momentum": 0.87, "eps": 3e-4}),
    "SMORMS3": (optimizers.SMORMS3, {"lr": 0.037, "eps": 3e-13}),
    "MSVAG": (optimizers.MSVAG, {"lr": 0.037, "beta": 0.87}),
    "MSVAG, decay": (optimizers.MSVAG, {"lr": 0.037, "beta": 0.87, "eta": 0.7, "weight_decay_rate": 0.013}),
    "Adam": (optimizers.Adam, _ADAM),
    "Adam, decay": (optimizers.Adam, {**_ADAM, "eta": 0.7, "weight_decay_rate": 0.013}),
    "AdamW": (optimizers.AdamW, {**_ADAM, "weight_decay_rate": 0.013}),
    "AMSGrad": (optimizers.AMSGrad, _ADAM),
    "AdaBound": (optimizers.AdaBound, _BOUND),
    "AMSBound": (optimizers.AMSBound, _BOUND),
    "Adam, everything": (optimizers.Adam, {**_BOUND, "amsgrad": True, "adabound": True, "weight_decay_rate": 0.013}),
    "LARS, not adapted": (mixprec.LARS, {"lr": 0.037, "weight_decay": 0.013, "adapt": False}),
    "LAMB, not adapted": (mixprec.LAMB, {"lr": 0.037, "weight_decay": 0.013, "adapt": False}),
    "SGDW": (mixprec.SGDW, {"lr": 0.037, "momentum": 0.87, "weight_decay": 0.13}),
    "SGDW, nesterov": (mixprec.SGDW, {"lr": 0.037, "momentum": 0.87, "weight_decay": 0.13, "nesterov": True}),
    "ScheduleFreeSGD": (mixprec.ScheduleFreeSGD, {"lr": 0.037, "momentum": 0.87, "weight_decay": 0.013}),
    "Lion": (mixprec.Lion, {"lr": 0.0037, "beta1": 0.87, "beta2": 0.983, "weight_decay": 0.13}),
    "LARS": (mixprec.LARS, {"lr": 0.37, "weight_decay": 0.013, "trust_coefficient": 0.1}),
    "LAMB": (mixprec.LAMB, {"lr": 0.037, "weight_decay": 0.013}),
}

_NOISE = np.random.RandomState(0).normal(size=1 << 18)  # gradients are slices of it: to draw them takes longer


def new_optimizer(name):
    """Returns an optimizer of :data:`RULES`."""
    kind, settings = RULES[name]
    return kind(**settings)


def rate_of(optimizer):
    """Returns the name of what a schedule moves."""
    return next(name for name in ("lr", "alpha", "rho") if hasattr(optimizer.hyperparam, name))


def link_of(arrays):
    """Returns a link with parameters by name; ``None`` for one without a shape yet, else an array."""
    link = chainer.Link()
    for name, array in arrays.items():
        add(link, name, array)
    return link


def add(link, name, array, dtype=np.float32):
    """Gives the link a parameter, or another in place of one that it has. Returns it."""
    param = chainer.Parameter(chainer.initializers.Zero(dtype)) if array is None else chainer.Parameter(array)
    param.cleargrad()
    with link.init_scope():
        setattr(link, name, param)
    return param


def bits(array):
    """The bytes of an array, or of a scalar, with its shape and dtype."""
    array = np.asarray(array)
    return array.shape, array.dtype, array.tobytes()


def assert_same_bits(found, expected, where):
    """A readable message for arrays that are not the same bit for bit."""
    if bits(found) != bits(expected):
        np.testing.assert_array_equal(found, expected, err_msg=where, strict=True)
        raise AssertionError(f"{where}: the bits differ, of a zero or a NaN")


class Side:
    """One of the two, in a way that what the user does to one can be done to the other.

    Attributes:
        optimizer: the optimizer.
        link: its model.
        wrapped: whether it is the wrapped one.
    """

    def __init__(self, optimizer, link, wrapped):
        self.optimizer = optimizer
        self.link = link
        self.wrapped = wrapped

    def param(self, name):
        return getattr(self.link, name)

    def rule(self, name):
        return getattr(self.link, name).update_rule

    def add(self, name, shape, dtype=np.float16, rule=True):
        """Gives the model another parameter, of FP32 on the plain side; ``shape`` may be ``None``."""
        array = None if shape is None else initial(shape, dtype)
        if not self.wrapped and is_half(dtype):
            dtype = np.float32
            array = None if array is None else array.astype(dtype)
        param = add(self.link, name, array, dtype)
        param.update_rule = self.optimizer.create_update_rule() if rule else None


class Pair:
    """The two optimizers.

    Args:
        new: returns an optimizer.
        params: ``{name: (shape, dtype)}``.
        batched: of the wrapped one.
        rules: ``{name of a parameter: name of a rule}`` for those that get theirs from another optimizer.
        seed: of the gradients.

    Attributes:
        wrapped, plain: :class:`Side`.
        steps: how many there have been.
        applied: how many of them did not overflow.
    """

    def __init__(self, new, params, *, batched=True, rules=None, seed=0):
        self.random = np.random.RandomState(seed)
        arrays = {name: initial(shape, dtype) for name, (shape, dtype) in params.items()}
        masters = {name: array.astype(np.result_type(array, np.float32)) for name, array in arrays.items()}
        link, plain = link_of(arrays), link_of(masters)
        optimizer = mixprec.MixedPrecisionOptimizer(new(), 1.0, batched=batched).setup(link)
        self.wrapped = Side(optimizer, link, True)
        self.plain = Side(new().setup(plain), plain, False)
        self.others = []  # the optimizers that some parameters have their rules from, of both sides
        self.steps = self.applied = 0
        for side in self.sides if rules else ():
            others = {rule: new_optimizer(rule) for rule in dict.fromkeys(rules.values())}
            self.others.append(others)
            for name, rule in rules.items():
                side.param(name).update_rule = others[rule].create_update_rule()

    @property
    def sides(self):
        return self.wrapped, self.plain

    def do(self, action, *args):
        """Does the same to both: ``action(side, *args)``."""
        for side in self.sides:
            action(side, *args)

    def gradients(self, scales, missing=(), size=1.0):
        """Returns random gradients by name, as the backward pass of a scaled loss would leave them, or ``None``."""
        found = {}
        for name, param in sorted(self.wrapped.link.namedparams(include_uninit=False)):
            name = name[1:]
            start = self.random.randint(len(_NOISE) - param.size + 1)
            gradient = _NOISE[start : start + param.size].reshape(param.shape) * (size * scales.get(name, 1.0))
            found[name] = None if name in missing else np.asarray(gradient).astype(param.dtype)
        return found

    def step(self, scale=1.0, *, missing=(), spoil=None, size=1.0, gradients=None):
        """A step with random gradients.

        Args:
            scale: what all gradients are multiplied by, or a dictionary by name; 1 for those that are not in it.
            missing: names of the parameters without a gradient.
            spoil: ``(name, value)``: an element of this gradient is inf or NaN, so that the step is skipped.
            size: about how large the gradients are, unscaled.
            gradients: in place of random ones, scaled.
        """
        if not isinstance(scale, dict):
            scale = dict.fromkeys((name[1:] for name, _ in self.wrapped.link.namedparams()), scale)
        gradients = self.gradients(scale, missing, size) if gradients is None else gradients
        if spoil is not None:
            name, value = spoil
            flat = gradients[name].reshape(-1)
            flat[self.random.randint(flat.size)] = value
        for name, gradient in gradients.items():
            param, master = self.wrapped.param(name), self.plain.param(name)
            param.cleargrad()
            master.cleargrad()
            if gradient is None:
                continue
            param.grad = gradient
            param._loss_scale = scale.get(name, 1.0)  # as Chainer's backward(loss_scale=...) leaves it
            if spoil is None:
                master.grad = np.asarray(gradient.astype(master.dtype) / scale.get(name, 1.0))
        self.steps += 1
        np.random.seed(self.steps)
        self.wrapped.optimizer.update()
        assert self.wrapped.optimizer.last_step_skipped == (spoil is not None)
        if spoil is None:
            self.applied += 1
            np.random.seed(self.steps)
            with np.errstate(all="ignore"):
                self.plain.optimizer.update()

    def assert_same(self):
        """Masters, parameters, states, ``t`` and other numbers of the rules are the same bit for bit."""
        optimizer = self.wrapped.optimizer
        assert optimizer.t == self.plain.optimizer.t
        assert optimizer.skipped == self.steps - self.applied
        for name, param in self.wrapped.link.namedparams():
            expected = self.plain.param(name[1:])
            if param.array is None:
                assert expected.array is None, name
            else:
                master = optimizer.master(param)
                assert_same_bits(master.array, expected.array, name)
                with np.errstate(over="ignore"):
                    assert_same_bits(param.array, expected.array.astype(param.dtype), f"{name}, rounded")
            _assert_same_rule(param.update_rule, expected.update_rule, expected, name)


def initial(shape, dtype):
    """The first values of a parameter: the same for the same shape, and no more of them than a float16 holds."""
    size = int(np.prod(shape))
    return np.asarray(_NOISE[size % 97 :][:size].reshape(shape).astype(np.float16).astype(dtype))


def _numbers(rule):
    return {name: value for name, value in vars(rule).items() if isinstance(value, (int, float))}


def _assert_same_rule(found, expected, param, name):
    assert type(found) is type(expected), name
    if found is None:
        return
    assert _numbers(found) == _numbers(expected), name
    state = expected.state
    if state is None and found.state is not None:  # as Chainer begins, whatever has been skipped
        fresh = type(expected)(expected.hyperparam)
        fresh._init_states(param)
        state = fresh.state
    assert set(found.state or ()) == set(state or ()), name
    for key in state or ():
        assert_same_bits(np.asarray(found.state[key]), np.asarray(state[key]), f"{name}, state {key}")

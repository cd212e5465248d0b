"""K-FAC in FP64, from activations and gradients of plain Chainer, by loops and NumPy's own inverse.

A model is built twice: one is converted and trained, the other one is made FP64 (:func:`doubled`) and looked at by a
link hook (:func:`gradients_of`). Definitions are those at the top of :mod:`mixprec.kfac.layers`.
"""

from typing import Any, NamedTuple

import chainer
import chainer.links as L
import numpy as np

import mixprec


class Of(NamedTuple):
    """What one call of a link had: its input, and the gradient of its output, as NumPy arrays in FP64."""

    link: Any
    x: Any
    dy: Any


class _Recorder(chainer.LinkHook):
    name = "Recorder"

    def __init__(self):
        self.calls = []

    def forward_postprocess(self, args):
        if isinstance(args.link, (L.Linear, L.Convolution2D, L.BatchNormalization)):
            self.calls.append((args.link, args.args[0], args.out))


def doubled(model):
    """Makes all parameters and statistics of a model of plain Chainer FP64; returns it."""
    for link in model.links():
        for param in link.params(include_uninit=False):
            grad, param.array = param.grad, param.array.astype(np.float64)
            param.grad = None if grad is None else param.array * 0
        for name in link._persistent:
            value = getattr(link, name)
            if isinstance(value, np.ndarray) and value.dtype.kind == "f":
                setattr(link, name, value.astype(np.float64))
    return model


def gradients_of(model, lossfun):
    """Runs a loss function of an FP64 model, and its backward pass.

    Returns:
        ``(calls, gradients)``: dict from names of links to lists of :class:`Of`, and dict from names of parameters to
        gradients, both FP64.
    """
    recorder = _Recorder()
    model.cleargrads()
    with recorder, chainer.using_config("dtype", np.float64), chainer.using_config("use_ideep", "never"):
        lossfun(model).backward(retain_grad=True)
    names = {id(link): name for name, link in model.namedlinks()}
    calls = {}
    for link, x, y in recorder.calls:
        x = x.array if isinstance(x, chainer.Variable) else x
        calls.setdefault(names[id(link)], []).append(Of(link, x.astype(np.float64), y.grad))
    return calls, {name: param.grad for name, param in model.namedparams() if param.grad is not None}


# --- moments


def patches(x, filter_size, stride, pad, dilate):
    """Returns what a filter sees at each position, x (N, C, H, W): (N, OH, OW, R, S, C)."""
    (r, s), (sh, sw), (ph, pw), (dh, dw) = filter_size, stride, pad, dilate
    x = np.pad(x, [(0, 0), (0, 0), (ph, ph), (pw, pw)])
    oh = (x.shape[2] - (r - 1) * dh - 1) // sh + 1
    ow = (x.shape[3] - (s - 1) * dw - 1) // sw + 1
    found = np.empty((len(x), oh, ow, r, s, x.shape[1]))
    for k, m in np.ndindex(r, s):
        rows = slice(k * dh, k * dh + (oh - 1) * sh + 1, sh)
        columns = slice(m * dw, m * dw + (ow - 1) * sw + 1, sw)
        found[:, :, :, k, m] = x[:, :, rows, columns].transpose(0, 2, 3, 1)
    return found


def pair(value):
    """Returns a number as Chainer's links take it, or a pair, as a pair."""
    return value if isinstance(value, tuple) else (value, value)


def rows_of(call):
    """Returns rows of inputs and of gradients of outputs of one call, (groups, images * positions, ...)."""
    link, x, dy = call
    if isinstance(link, L.Linear):
        rows, gradients = x.reshape(1, len(x), -1), dy[None]
    else:
        seen = patches(x, link.W.shape[2:], pair(link.stride), pair(link.pad), pair(link.dilate))
        channels = x.shape[1] // link.groups
        split = seen.reshape(*seen.shape[:5], link.groups, channels)
        rows = np.moveaxis(split, 5, 0).reshape(link.groups, -1, link.W[0].size)
        gradients = np.moveaxis(dy, 1, 3).reshape(-1, link.groups, dy.shape[1] // link.groups).transpose(1, 0, 2)
    if link.b is not None:
        rows = np.concatenate([rows, np.ones((*rows.shape[:2], 1))], axis=2)
    return rows, gradients


def moments_of(calls, images=None):
    """Returns the second moments of a layer, as its averages are after a step: A and G, or (3, C).

    Args:
        calls: list of :class:`Of`, all uses of one link.
        images: n; the batch of the first use unless it is given.
    """
    images = len(calls[0].x) if images is None else images
    if isinstance(calls[0].link, L.BatchNormalization):
        found = 0
        for link, x, dy in calls:
            axes = tuple(each for each in range(x.ndim) if each != 1)
            shape = [1, -1] + [1] * (x.ndim - 2)
            variance = x.var(axis=axes).reshape(shape)
            normalized = (x - x.mean(axis=axes).reshape(shape)) / np.sqrt(variance + link.eps)
            dgamma, dbeta = (
                each.reshape(*each.shape[:2], -1).sum(axis=2) for each in (dy * normalized, dy)
            )  # of each image
            each = np.stack([dgamma**2, dgamma * dbeta, dbeta**2])
            found = found + images**2 * each.sum(axis=1) / images
        return [found]
    rows, gradients = (np.concatenate(arrays, axis=1) for arrays in zip(*map(rows_of, calls), strict=True))
    positions = gradients.shape[1]  # in all images
    a = np.einsum("gmi,gmj->gij", rows, rows) / images
    return [a, images**2 * np.einsum("gmi,gmj->gij", gradients, gradients) / positions]


# --- gradients


def inverses_of(moments, damping):
    """Returns the inverses of the second moments plus damping."""
    if len(moments) == 1:
        (gamma, both, beta), found = moments[0], np.empty_like(moments[0])
        for channel in range(len(gamma)):
            own = 64 * damping  # the default of norm_damping
            matrix = [[gamma[channel] + own, both[channel]], [both[channel], beta[channel] + own]]
            inverse = np.linalg.inv(matrix)
            found[:, channel] = inverse[0, 0], inverse[0, 1], inverse[1, 1]
        return [found]
    a, g = moments
    found = np.empty_like(a), np.empty_like(g)
    for group in range(len(a)):
        ratio = np.sqrt((np.trace(a[group]) / a.shape[1]) / (np.trace(g[group]) / g.shape[1]))
        for matrices, shift, inverses in zip(moments, (ratio, 1 / ratio), found, strict=True):
            inverses[group] = np.linalg.inv(matrices[group] + shift * np.sqrt(damping) * np.eye(matrices.shape[1]))
    return list(found)


def preconditioned(link, gradients, inverses):
    """Returns the gradients of the parameters of a link, in a list, multiplied by inverses."""
    if len(inverses) == 1:
        dgamma, dbeta = gradients
        gamma, both, beta = inverses[0]
        return [gamma * dgamma + both * dbeta, both * dgamma + beta * dbeta]
    a, g = inverses
    weights = gradients[0] if gradients[0].ndim == 2 else gradients[0].transpose(0, 2, 3, 1)
    matrix = weights.reshape(len(a), -1, weights[0].size)
    if len(gradients) == 2:
        matrix = np.concatenate([matrix, gradients[1].reshape(*matrix.shape[:2], 1)], axis=2)
    result = np.stack([g[group] @ matrix[group] @ a[group] for group in range(len(a))])
    found = result[:, :, : weights[0].size].reshape(weights.shape)
    found = found if found.ndim == 2 else found.transpose(0, 3, 1, 2)
    return [found, result[:, :, -1].reshape(-1)][: len(gradients)]


def names_of(link):
    """Returns the names of the parameters that K-FAC takes of a link, in its order."""
    if isinstance(link, L.BatchNormalization):
        return ["gamma", "beta"]
    return ["W"] if link.b is None else ["W", "b"]


def step(model, lossfun, damping):
    """Computes the first step of an FP64 model.

    Returns:
        ``(moments, gradients)``: dict from the name of each layer's first parameter to its second moments, and dict
        from names of parameters to preconditioned gradients.
    """
    calls, gradients = gradients_of(model, lossfun)
    moments = {}
    for name, of_link in calls.items():
        link, prefix = of_link[0].link, name.rstrip("/")
        names = [f"{prefix}/{each}" for each in names_of(link)]
        moments[names[0]] = moments_of(of_link)
        results = preconditioned(link, [gradients[each] for each in names], inverses_of(moments[names[0]], damping))
        gradients.update(zip(names, results, strict=True))
    return moments, gradients


# --- what mixprec has


class Gradients:
    """A hook of an optimizer: the gradients that it is given, by the names of parameters, in ``found``; copies."""

    name, timing = "Gradients", "pre"

    def __init__(self):
        self.found = {}

    def __call__(self, optimizer):
        self.found = {name: np.array(param.grad) for name, param in optimizer.target.namedparams()}


def layer_of(kfac, name):
    """Returns what K-FAC knows of the layer whose first parameter is called ``name``."""
    return kfac._collector.layers[name]


def state_of(optimizer, kfac):
    """Returns all that a step moves, by name; copies. Of symmetric matrices the lower triangle counts."""
    found = {name: np.array(lower(array)) for name, array in kfac.state().items()}
    for name, param in optimizer.target.namedparams():
        master = optimizer.master(param)
        found[f"master {name}"] = master.array.copy()
        for key, value in (master.update_rule.state or {}).items():
            found[f"{key} {name}"] = np.array(value)
    return found


def assert_same(found, expected):
    """Asserts that two states are the same, bit for bit."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name, strict=True)


def assert_near(found, expected, tolerance, what=""):
    """Asserts that arrays are within ``tolerance`` of each other, relative to the norm of the expected one."""
    assert found.shape == expected.shape, what
    distance = np.linalg.norm(np.asarray(found, np.float64) - expected)
    assert distance <= tolerance * np.linalg.norm(expected), (what, distance / np.linalg.norm(expected))


def optimizer_of(model, rule=None, *, loss_scale=2.0**8, damping=0.1, batched=True, **options):
    """Sets up an optimizer with K-FAC for a model; returns ``(optimizer, kfac)``.

    Args:
        model: any link.
        rule: Chainer's optimizer, SGD with a learning rate of 0.01 unless it is given.
        loss_scale, batched: as of the optimizer.
        damping: of K-FAC; also ``options``.
    """
    kfac = mixprec.KFAC(damping, **options)
    rule = chainer.optimizers.SGD(0.01) if rule is None else rule
    wrapper = mixprec.MixedPrecisionOptimizer(rule, loss_scale, batched=batched, preconditioner=kfac)
    return wrapper.setup(model), kfac


def wrapped(model, rule=None, *, compute="float32", fuse=None, **options):
    """Like :func:`optimizer_of`, and converts the model, which is of plain Chainer."""
    found = optimizer_of(model, rule, **options)
    mixprec.convert(model, compute=compute, fuse=fuse)
    return found


def seen_by_hooks(optimizer):
    """Returns the gradients of the steps to come, as hooks see them: ``found`` of what is returned."""
    seen = Gradients()
    optimizer.add_hook(seen)
    return seen


# --- the first step, ours and in FP64


class Step(NamedTuple):
    """The second moments of layers and the preconditioned gradients of parameters, by name; K-FAC, if it is ours."""

    moments: Any
    gradients: Any
    kfac: Any = None


def first_step(optimizer, kfac, lossfun, x, t):
    """Runs a step of a model that is converted."""
    seen = seen_by_hooks(optimizer)
    optimizer.update(lossfun, optimizer.target, x, t)
    assert not optimizer.skipped
    return Step({name: layer.averages for name, layer in kfac._collector.layers.items()}, seen.found, kfac)


def expected_step(plain, lossfun, x, t, damping=0.1):
    """Computes what :func:`first_step` should return, from a model of plain Chainer, which becomes FP64."""
    x = x.astype(np.float64) if x.dtype.kind == "f" else x
    return Step(*step(doubled(plain), lambda model: lossfun(model, x, t), damping))


def lower(array):
    """Returns an array, of symmetric matrices the triangle that counts."""
    return np.tril(array) if array.ndim == 3 else np.asarray(array)


def assert_moments(found, expected, tolerance=1e-5):
    """Asserts that the second moments of two steps are near each other."""
    assert found.moments.keys() == expected.moments.keys()
    for name, moments in expected.moments.items():
        for ours, theirs in zip(found.moments[name], moments, strict=True):
            assert ours.dtype == np.float32
            assert_near(lower(ours), lower(theirs), tolerance, name)


def assert_step(found, expected):
    """Asserts that moments and gradients of two steps are near each other."""
    assert_moments(found, expected)
    assert found.gradients.keys() == expected.gradients.keys()
    for name, gradient in expected.gradients.items():
        assert_near(found.gradients[name], gradient, 1e-4, name)

"""Habits of training loops: what programs do with gradients, hooks, losses and weights between steps."""

import chainer
import chainer.functions as F
import numpy as np
from chainer import optimizer_hooks, optimizers

from tests.habits.parts import classifier, mlp
from tests.habits.running import STEPS, T, X, habit


@habit()
def weights_clipped_by_assignment(run):
    model = mlp(1)
    optimizer, losses = run.setup(optimizers.RMSprop(1e-2), model), []
    for _ in range(STEPS):
        losses += run.fit(optimizer, lambda: F.mean(model(X)), steps=1)
        for param in model.params():
            param.data = np.clip(param.data, -0.25, 0.25)
    return losses


@habit()
def updates_disabled_for_some_steps(run):
    model, optimizer = classifier(run)
    losses = run.fit(optimizer, model, X, T)
    model.predictor[0].disable_update()
    losses += run.fit(optimizer, model, X, T)
    model.predictor[0].enable_update()
    return losses + run.fit(optimizer, model, X, T)


@habit()
def hyperparameters_of_single_rules(run):
    model, optimizer = classifier(run, optimizers.MomentumSGD(0.1))
    model.predictor[0].W.update_rule.hyperparam.lr = 0.4
    for param in model.params():
        if param.name == "b":
            param.update_rule.hyperparam.momentum = 0
    return run.fit(optimizer, model, X, T)


@habit()
def own_hooks_over_the_target(run):
    def shrink(optimizer):
        for param in optimizer.target.params():
            param.grad *= 0.1 / max(0.1, np.linalg.norm(param.grad))

    def restrict(optimizer):
        for param in optimizer.target.params():
            param.array[...] = np.clip(param.array, -0.25, 0.25)

    shrink.timing, restrict.timing = "pre", "post"
    model, optimizer = classifier(run)
    optimizer.add_hook(shrink)
    optimizer.add_hook(restrict)
    return run.fit(optimizer, model, X, T)


@habit()
def all_hooks_of_chainer(run):
    hooks = [optimizer_hooks.WeightDecay(0.05), optimizer_hooks.Lasso(0.02), optimizer_hooks.GradientClipping(0.3)]
    model, optimizer = classifier(run, hooks=[*hooks, optimizer_hooks.GradientHardClipping(-0.2, 0.2)])
    return run.fit(optimizer, model, X, T)


@habit()
def learning_rates_moved_by_hand(run):
    model, optimizer = classifier(run, optimizers.Adam(0.02))
    losses = run.fit(optimizer, model, X, T)
    optimizer.alpha *= 0.1
    optimizer.new_epoch()
    return [*losses, *run.fit(optimizer, model, X, T), optimizer.alpha, optimizer.t, optimizer.epoch]


@habit()
def gradients_accumulated_by_hand(run):
    model, optimizer = classifier(run)
    for _ in range(STEPS):
        model.cleargrads()
        for start in (0, 2, 4):
            run.backward(optimizer, model(X[start : start + 2], T[start : start + 2]) / 3)
        optimizer.update()


@habit()
def losses_of_several_tasks(run):
    model = mlp(4)
    optimizer = run.setup(optimizers.SGD(0.2), model)

    def loss():
        y = model(X)
        return F.softmax_cross_entropy(y[:, :3], T) + 0.5 * F.mean_squared_error(y[:, 3], X[:, 0])

    losses = run.fit(optimizer, loss)
    for _ in range(STEPS):
        model.cleargrads()
        y = model(X)
        run.backward(optimizer, F.softmax_cross_entropy(y[:, :3], T))
        run.backward(optimizer, F.huber_loss(y[:, 3], X[:, 0], 1.0, reduce="no")[0])
        optimizer.update()
    return losses


@habit()
def penalties_on_weights(run):
    """Decay, lasso, orthogonal filters, and weights that are to stay near those of an earlier task."""
    model, optimizer = classifier(run)
    before = {name: param.array.astype("f") + 0.01 for name, param in model.namedparams()}

    def loss():
        W = model.predictor[0].W
        orthogonal = F.sum((F.matmul(W, W, transa=True) - np.eye(4, dtype="f")) ** 2)
        near = sum(F.sum((p - before[name]) ** 2) for name, p in model.namedparams())
        return model(X, T) + 0.02 * sum(F.sum(F.absolute(p)) for p in model.params()) + 0.05 * orthogonal + near

    return run.fit(optimizer, loss)


@habit(without=("float16", "bfloat16"))
def penalties_on_gradients(run):
    """Differentiated twice: the gradient of an input, as in WGAN-GP, and those of the weights."""
    critic = mlp(1)
    optimizer, x = run.setup(optimizers.SGD(0.02), critic), chainer.Variable(X)

    def loss():
        found = F.mean(critic(x) ** 2)
        of_input, of_weight = chainer.grad([found], [x, critic[2].W], enable_double_backprop=True)
        penalty = F.mean((F.sqrt(F.batch_l2_norm_squared(of_input)) - 1) ** 2)
        return found + penalty + F.sum(F.cast(of_weight, "float32") ** 2)

    return run.fit(optimizer, loss)


@habit()
def gradients_by_chainer_grad(run):
    model, optimizer = classifier(run)
    x = chainer.Variable(X)
    seen = [chainer.grad([model(x, T)], [x])]
    for _ in range(STEPS):
        params = list(model.params())
        model.cleargrads()
        for param, grad in zip(params, chainer.grad([model(x, T)], params), strict=True):
            param.grad = grad.array
        optimizer.update()
    return seen

"""Habits with several models or optimizers, or with copies and files of one."""

import copy
import pickle
import tempfile

import chainer
import chainer.functions as F
import chainer.links as L
from chainer import optimizers, serializers

from tests.habits.parts import classifier, mlp
from tests.habits.running import STEPS, T, X, habit


@habit()
def pickled_and_copied(run):
    model, optimizer = classifier(run, optimizers.Adam(0.02))
    losses = run.fit(optimizer, model, X, T)
    for pair in (pickle.loads(pickle.dumps((model, optimizer))), copy.deepcopy((model, optimizer))):
        losses += run.fit(pair[1], pair[0], X, T)
    return losses


@habit()
def saved_and_loaded(run):
    model, optimizer = classifier(run, optimizers.Adam(0.02))
    losses = run.fit(optimizer, model, X, T)
    with tempfile.TemporaryDirectory() as folder:
        for save, load in ((serializers.save_npz,) * 2, (serializers.save_hdf5,) * 2):
            load = getattr(serializers, save.__name__.replace("save", "load"))
            for name, part in (("model", model), ("optimizer", optimizer)):
                save(f"{folder}/{name}", part)
            losses += run.fit(optimizer, model, X, T)
            for name, part in (("model", model), ("optimizer", optimizer)):
                load(f"{folder}/{name}", part)
    return losses


@habit()
def target_network_that_is_replaced(run):
    model, target = mlp(), mlp()
    optimizer = run.setup(optimizers.Adam(0.02), model)
    run.convert(target)

    def loss(best):
        return F.mean(F.huber_loss(F.select_item(model(X), T), best, 1.0, "no"))

    losses = []
    for _ in range(2):
        target.copyparams(model)
        with chainer.no_backprop_mode(), chainer.using_config("train", False):
            best = F.max(target(X), axis=1).array
        losses += run.fit(optimizer, loss, best)
    return losses


@habit()
def one_backward_for_two_optimizers(run):
    class Pair(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.encoder, self.decoder = mlp(2), L.Linear(2, 4)

        def forward(self, x):
            return F.mean_squared_error(self.decoder(self.encoder(x)), x)

    model, losses = Pair(), []
    first = run.setup(optimizers.Adam(0.02), model.encoder, convert=False)
    second = run.setup(optimizers.MomentumSGD(0.1), model.decoder, convert=False)
    run.convert(model)
    for _ in range(STEPS):
        model.cleargrads()
        losses.append(model(X))
        run.backward(first, losses[-1])
        first.update()
        second.update()
    return losses


@habit()
def generator_and_critic(run):
    """As in Chainer's DCGAN: two losses of one graph, each for the optimizer of one network."""
    generator, critic = mlp(4), mlp(1)
    for_generator, for_critic = run.setup(optimizers.Adam(0.02), generator), run.setup(optimizers.Adam(0.02), critic)
    losses = []
    for _ in range(STEPS):
        fake = generator(X[::-1].copy())
        ys = critic(fake), critic(X)
        losses += run.fit(for_critic, lambda a, b: F.mean(F.softplus(a)) + F.mean(F.softplus(-b)), *ys, steps=1)
        losses += run.fit(for_generator, lambda a: F.mean(F.softplus(-a)), ys[0], steps=1)
    return losses


@habit()
def two_optimizers_over_one_model(run):
    model = L.Classifier(mlp())
    first = run.setup(optimizers.SGD(0.1), model)
    second = run.setup(optimizers.MomentumSGD(0.1), model.predictor[2], convert=False)
    return run.fit(first, model, X, T) + run.fit(second, model, X, T) + run.fit(first, model, X, T)


@habit()
def head_is_trained_and_then_all(run):
    """Fine-tuning: weights of a file, a new head, the trunk without a graph, and then everything."""
    with tempfile.TemporaryDirectory() as folder:
        serializers.save_npz(f"{folder}/trunk", chainer.Sequential(L.Linear(4, 8)))
        model = chainer.Sequential(chainer.Sequential(L.Linear(4, 8), F.tanh), L.Linear(8, 3))
        serializers.load_npz(f"{folder}/trunk", model[0])
    optimizer = run.setup(optimizers.MomentumSGD(0.1), model)

    def on_features():
        with chainer.no_backprop_mode():
            h = model[0](X)
        return F.softmax_cross_entropy(model[1](h.array), T)

    return run.fit(optimizer, on_features) + run.fit(optimizer, lambda: F.softmax_cross_entropy(model(X), T))


@habit()
def evaluation_between_steps(run):
    model, optimizer = classifier(run)
    seen = []
    for _ in range(STEPS):
        seen += run.fit(optimizer, model, X, T, steps=1)
        with chainer.using_config("train", False), chainer.using_config("enable_backprop", False):
            seen.append(model.predictor(X))
        seen += [model.loss, model.y]
    return seen

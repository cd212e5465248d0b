"""Deep Q-learning on a cart-pole, after examples/reinforcement_learning/dqn_cartpole.py of Chainer (MIT licence).

Reward 1 for each step before the pole falls; an episode ends after 200 steps.
"""

import argparse
import collections
import copy
import json
import os
import random

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

import mixprec


class CartPole:
    """A pole on a cart that is pushed to the left (0) or to the right (1), as Barto, Sutton and Anderson wrote it."""

    limit = 200  # steps of an episode

    def __init__(self, seed):
        self.random = np.random.RandomState(seed)

    def reset(self):
        """Returns the state, float32 (4,): position, velocity, angle, angular velocity."""
        self.state, self.steps = self.random.uniform(-0.05, 0.05, 4), 0
        return self.state.astype(np.float32)

    def step(self, action):
        """Pushes for 0.02 s; returns the state, the reward and whether the pole has fallen."""
        x, v, angle, spin = self.state
        sine, cosine = np.sin(angle), np.cos(angle)
        push = ((10 if action else -10) + 0.05 * spin**2 * sine) / 1.1
        turn = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        speed = push - 0.05 * turn * cosine / 1.1
        self.state = np.array([x + 0.02 * v, v + 0.02 * speed, angle + 0.02 * spin, spin + 0.02 * turn])
        self.steps += 1
        fallen = abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.2095
        return self.state.astype(np.float32), 1.0, bool(fallen)


class QFunction(chainer.Chain):
    """(N, 4) states to (N, 2) values of actions."""

    def __init__(self, n_units):
        super().__init__()
        with self.init_scope():
            self.l0 = L.Linear(4, n_units)
            self.l1 = L.Linear(n_units, n_units)
            self.l2 = L.Linear(n_units, 2)

    def forward(self, x):
        h = F.relu(self.l0(x))
        h = F.relu(self.l1(h))
        return self.l2(h)

    def loss(self, states, actions, targets):
        """Huber loss, as the mean over a batch, of the values of the actions that were taken."""
        return F.mean(F.huber_loss(F.select_item(self(states), actions), targets, delta=1.0, reduce="no"))


def greedy_action(q, state):
    with chainer.no_backprop_mode():
        return int(q(q.device.send(state[None])).array.argmax())


def make_batch(target_q, transitions, gamma):
    """Arguments of the loss from transitions (state, action, reward, fallen, next state)."""
    columns = [target_q.device.send(np.array(column)) for column in zip(*transitions, strict=True)]
    states, actions, rewards, fallen, following = columns
    with chainer.no_backprop_mode():
        best = target_q(following).array.max(axis=1)
    return states, actions, rewards + gamma * (1 - fallen) * best


def mean_return(q, episodes):
    """Mean return of the greedy policy."""
    env, total = CartPole(seed=1000), 0
    for _ in range(episodes):
        state, fallen = env.reset(), False
        while not fallen and env.steps < env.limit:
            state, reward, fallen = env.step(greedy_action(q, state))
            total += reward
    return total / episodes


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batchsize", "-b", type=int, default=64, help="transitions in a batch")
    parser.add_argument("--epoch", "-e", type=int, default=12, help="epochs, of 500 steps each")
    parser.add_argument("--unit", "-u", type=int, default=100, help="units of a hidden layer")
    parser.add_argument("--gamma", type=float, default=0.95, help="discount of later rewards")
    parser.add_argument("--target-update", type=int, default=300, help="steps between copies to the target network")
    parser.add_argument("--device", "-d", default="@numpy", help="a device of Chainer: @numpy, @cupy:0")
    parser.add_argument("--out", "-o", default="results/dqn", help="folder for the results")
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see that it runs")
    args = parser.parse_args()
    episodes = 10
    if args.quick:
        args.epoch, args.unit, episodes = 6, 50, 3
    np.random.seed(0)
    random.seed(0)
    device = chainer.get_device(args.device)
    device.use()

    q = QFunction(args.unit)
    q.to_device(device)
    optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.Adam(5e-4))
    optimizer.setup(q)
    mixprec.convert(q)
    step = mixprec.capture(optimizer, q.loss)
    target_q = copy.deepcopy(q)

    env, replay, log = CartPole(seed=0), collections.deque(maxlen=10000), []
    state = env.reset()
    os.makedirs(args.out, exist_ok=True)
    for iteration in range(args.epoch * 500):
        epsilon = max(0.05, 1 - iteration / 1500)  # share of actions by chance
        action = random.randrange(2) if random.random() < epsilon else greedy_action(q, state)
        following, reward, fallen = env.step(action)
        replay.append((state, np.int32(action), np.float32(reward), np.float32(fallen), following))
        state = env.reset() if fallen or env.steps == env.limit else following
        if iteration % args.target_update == 0:
            target_q.copyparams(q)
        if len(replay) >= 4 * args.batchsize:
            step(*make_batch(target_q, random.sample(replay, args.batchsize), args.gamma))
        if iteration % 500 == 499:
            loss = q.loss(*make_batch(target_q, random.sample(replay, args.batchsize), args.gamma))
            log.append({"epoch": iteration // 500 + 1, "loss": float(loss.array), "return": mean_return(q, episodes)})
            print("epoch {epoch}: loss {loss:.4f}, mean return {return:.1f}".format(**log[-1]))
            with open(f"{args.out}/log", "w") as file:
                json.dump(log, file, indent=4)
    chainer.serializers.save_npz(f"{args.out}/model.npz", q)


if __name__ == "__main__":
    main()

"""ChainerRL's agents on a toy task, as its examples put them together: ``python -m tests.real_programs.agents``.

Each observation asks for an action of its own. The reward of a step is 1 at best; actions by chance get about 0.3.

    python -m tests.real_programs.agents DQN            plain Chainer
    python -m tests.real_programs.agents DQN bfloat16   the model converted, and the optimizer wrapped
    python -m tests.real_programs.agents DQN float16 --no-scale
"""

import argparse

import mixprec.old_code  # isort: skip (before what needs it)

import chainer
import chainer.functions as F
import chainer.links as L
import chainerrl
import numpy as np
from chainerrl.agents import a2c, a3c
from gym import spaces

import mixprec

WIDTH = 32
EPISODE = 5


class Task(chainerrl.env.Env):
    """Actions to be learned: class i for observation i; or two numbers in (-1, 1) for each observation."""

    n_dim_obs = 3
    wanted = np.array([[0.5, -0.5], [-0.5, 0.5], [0.5, 0.5]], "float32")

    def __init__(self, discrete, seed):
        self.random = np.random.RandomState(seed)
        self.size = 3 if discrete else 2
        self.discrete = discrete
        self.observation_space = spaces.Box(0, 1, (3,), np.float32)
        self.action_space = spaces.Discrete(3) if discrete else spaces.Box(-1, 1, (2,), np.float32)
        self.action_space.seed(seed)

    def reset(self):
        self.left = EPISODE
        return self._next()

    def step(self, action):
        distance = action != self.state if self.discrete else abs(action - self.wanted[self.state]).mean()
        self.left -= 1
        return self._next(), 1.0 - float(distance), self.left == 0, {}

    def close(self):
        pass

    def _next(self):
        self.state = self.random.randint(3)
        return np.eye(3, dtype="float32")[self.state]


class Setup:
    """Wraps optimizers and converts models, or leaves both plain."""

    def __init__(self, compute=None, loss_scale="dynamic"):
        self.compute, self.loss_scale = compute, loss_scale

    def __call__(self, model, rate):
        """Returns the optimizer of a model."""
        optimizer = chainer.optimizers.Adam(rate)
        if self.compute is None:
            return optimizer.setup(model)
        given = {} if self.loss_scale == "dynamic" else {"loss_scale": self.loss_scale}
        optimizer = mixprec.MixedPrecisionOptimizer(optimizer, **given).setup(model)
        mixprec.convert(model, compute=self.compute)
        return optimizer


def dqn(setup, env):
    q = chainerrl.q_functions.FCStateQFunctionWithDiscreteAction(env.n_dim_obs, env.size, WIDTH, 1)
    explorer = chainerrl.explorers.LinearDecayEpsilonGreedy(1.0, 0.05, 250, env.action_space.sample)
    memory = chainerrl.replay_buffer.ReplayBuffer(10**5)
    optimizer = setup(q, 3e-3)
    return chainerrl.agents.DoubleDQN(
        *(q, optimizer, memory, 0.9, explorer), replay_start_size=100, target_update_interval=50
    )


def _discrete_policy(env):
    return chainerrl.policies.FCSoftmaxPolicy(env.n_dim_obs, env.size, 1, WIDTH, min_prob=0.0)


def a2c_agent(setup, env):
    model = a2c.A2CSeparateModel(_discrete_policy(env), chainerrl.v_functions.FCVFunction(env.n_dim_obs, 1, WIDTH))
    return chainerrl.agents.A2C(model, setup(model, 1e-2), 0.0, num_processes=1, update_steps=10)


def ppo_agent(setup, env):
    value = chainerrl.v_functions.FCVFunction(env.n_dim_obs, 1, WIDTH)
    policy = chainerrl.policies.FCGaussianPolicyWithFixedCovariance(env.n_dim_obs, env.size, 0.05, 1, WIDTH)
    model = a3c.A3CSeparateModel(policy, value)
    return chainerrl.agents.PPO(
        model, setup(model, 1e-2), gamma=0.0, lambd=0.0, update_interval=50, minibatch_size=25, epochs=5
    )


class _StateAction(chainer.Chain):
    """A function of state and action, as the examples of SAC and TD3 have it."""

    def __init__(self, env):
        super().__init__()
        with self.init_scope():
            self.first = L.Linear(env.n_dim_obs + env.size, WIDTH)
            self.second = L.Linear(WIDTH, WIDTH)
            self.out = L.Linear(WIDTH, 1)

    def forward(self, state, action):
        h = F.relu(self.first(F.concat([state, action], axis=-1)))
        return self.out(F.relu(self.second(h)))


def _squashed(x):
    mean, log_scale = F.split_axis(x, 2, axis=1)
    log_scale = F.clip(log_scale, -5.0, 2.0)
    return chainerrl.distribution.SquashedGaussianDistribution(mean, var=F.exp(log_scale * 2))


def sac(setup, env):
    policy = chainer.Sequential(
        *(L.Linear(env.n_dim_obs, WIDTH), F.relu, L.Linear(WIDTH, WIDTH), F.relu),
        *(L.Linear(WIDTH, 2 * env.size, initialW=chainer.initializers.LeCunUniform(0.1)), _squashed),
    )
    first, second = _StateAction(env), _StateAction(env)
    memory = chainerrl.replay_buffer.ReplayBuffer(10**5)
    return chainerrl.agents.SoftActorCritic(
        *(policy, first, second, *(setup(each, 3e-3) for each in (policy, first, second)), memory, 0.9),
        replay_start_size=100,
        minibatch_size=32,
        update_interval=2,
        initial_temperature=0.1,
        entropy_target=-env.size,
        burnin_action_func=env.action_space.sample,
    )


def td3(setup, env):
    policy = chainer.Sequential(
        *(L.Linear(env.n_dim_obs, WIDTH), F.relu, L.Linear(WIDTH, WIDTH), F.relu),
        *(L.Linear(WIDTH, env.size), F.tanh, chainerrl.distribution.ContinuousDeterministicDistribution),
    )
    first, second = _StateAction(env), _StateAction(env)
    memory = chainerrl.replay_buffer.ReplayBuffer(10**5)
    explorer = chainerrl.explorers.AdditiveGaussian(scale=0.1, low=-1.0, high=1.0)
    return chainerrl.agents.TD3(
        *(policy, first, second, *(setup(each, 3e-3) for each in (policy, first, second)), memory, 0.9, explorer),
        replay_start_size=100,
        minibatch_size=32,
        update_interval=2,
        burnin_action_func=env.action_space.sample,
    )


# Name of the agent: how it is made, whether actions are discrete, steps of training.
AGENTS = {
    "DQN": (dqn, True, 400),
    "A2C": (a2c_agent, True, 600),
    "PPO": (ppo_agent, False, 400),
    "SAC": (sac, False, 500),
    "TD3": (td3, False, 500),
}


def train(name, setup, seed=0):
    """Returns the mean reward of the last 100 steps of training, with all that the agent still explores."""
    chainerrl.misc.set_random_seed(seed)
    make, discrete, steps = AGENTS[name]
    env = Task(discrete, seed)
    agent = make(setup, env)
    rewards, states = [], [env.reset()]
    for _ in range(steps):
        state, reward, done, _ = env.step(agent.batch_act_and_train(states)[0])
        rewards.append(reward)
        agent.batch_observe_and_train([state], [reward], [done], [False])
        states = [env.reset() if done else state]
    return float(np.mean(rewards[-100:]))


def main():
    parser = argparse.ArgumentParser(description="Trains an agent of ChainerRL; prints its reward, 1 at best.")
    parser.add_argument("agent", choices=AGENTS)
    parser.add_argument("compute", nargs="?", choices=("float16", "bfloat16", "float32"))
    parser.add_argument("--no-scale", action="store_true", help="loss_scale=None")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    setup = Setup(given.compute, None if given.no_scale else "dynamic")
    print(f"{train(given.agent, setup, given.seed):.4f}")


if __name__ == "__main__":
    main()

"""The formulas of Chainer's 15 optimizers, in float64, for test_chainer_behaviour.py.

A formula takes ``(state, gradient, step)``, with an empty dictionary as the first state, and returns what the step
takes off the parameter, which ``state["p"]`` holds.
"""

import math

import numpy as np


def sgd(s, g, t):
    return 0.1 * g


def momentum_sgd(s, g, t):
    s["v"] = 0.9 * s.get("v", 0) - 0.1 * g
    return -s["v"]


def corrected_momentum_sgd(s, g, t):
    s["v"] = 0.9 * s.get("v", 0) - g
    return -0.1 * s["v"]


def nesterov_ag(s, g, t):
    s["v"] = 0.9 * s.get("v", 0) - 0.1 * g
    return -(0.9**2 * s["v"] - 1.9 * 0.1 * g)


def ada_grad(s, g, t):
    s["h"] = s.get("h", 0) + g * g
    return 0.1 * g / (np.sqrt(s["h"]) + 1e-2)


def ada_delta(s, g, t):
    s["msg"] = 0.95 * s.get("msg", 0) + 0.05 * g * g
    dx = np.sqrt((s.get("msdx", 0) + 1e-2) / (s["msg"] + 1e-2)) * g
    s["msdx"] = 0.95 * s.get("msdx", 0) + 0.05 * dx * dx
    return dx


def rmsprop(s, g, t):
    s["ms"] = 0.75 * s.get("ms", 0) + 0.25 * g * g
    return 0.1 * g / (np.sqrt(s["ms"]) + 1e-2)


def rmsprop_graves(s, g, t):
    s["n"] = 0.75 * s.get("n", 0) + 0.25 * g * g
    s["g"] = 0.75 * s.get("g", 0) + 0.25 * g
    s["delta"] = 0.9 * s.get("delta", 0) - 0.1 * g / np.sqrt(s["n"] - s["g"] ** 2 + 1e-2)
    return -s["delta"]


def smorms3(s, g, t):
    r = 1 / (s.get("mem", 1) + 1)
    s["g"] = (1 - r) * s.get("g", 0) + r * g
    s["g2"] = (1 - r) * s.get("g2", 0) + r * g * g
    x = s["g"] ** 2 / (s["g2"] + 1e-2)
    s["mem"] = 1 + s.get("mem", 1) * (1 - x)
    return g * np.minimum(x, 0.1) / (np.sqrt(s["g2"]) + 1e-2)


def msvag(s, g, t):
    beta = 0.9**t
    rho = min(0.1**2 * (1 - beta**2) / ((1 - beta) ** 2 * (1 - 0.9**2)), 0.9999)
    s["m"] = s.get("m", 0) + 0.1 * (g - s.get("m", 0))
    s["v"] = s.get("v", 0) + 0.1 * (g * g - s.get("v", 0))
    m, v = s["m"] / (1 - beta), s["v"] / (1 - beta)
    return 0.1 * m * np.clip(m**2 / (m**2 + rho * (v - m**2) / (1 - rho)), 0, 1)


def adam_like(amsgrad=False, bound=False, decay=0.0):
    def formula(s, g, t):
        s["m"] = 0.9 * s.get("m", 0) + 0.1 * g
        s["v"] = 0.99 * s.get("v", 0) + 0.01 * g * g
        s["vhat"] = np.maximum(s.get("vhat", 0), s["v"]) if amsgrad else s["v"]
        step = 0.1 * math.sqrt(1 - 0.99**t) / (1 - 0.9**t) / (np.sqrt(s["vhat"]) + 1e-2)
        if bound:
            step = np.clip(step, 0.2 * (1 - 1 / (0.5 * t + 1)), 0.2 * (1 + 1 / (0.5 * t)))
        return step * s["m"] + decay * s["p"]

    return formula


ADAM = {"alpha": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-2}
BOUND = {**ADAM, "final_lr": 0.2, "gamma": 0.5}
OPTIMIZERS = {
    "SGD": ({"lr": 0.1}, sgd),
    "MomentumSGD": ({"lr": 0.1, "momentum": 0.9}, momentum_sgd),
    "CorrectedMomentumSGD": ({"lr": 0.1, "momentum": 0.9}, corrected_momentum_sgd),
    "NesterovAG": ({"lr": 0.1, "momentum": 0.9}, nesterov_ag),
    "AdaGrad": ({"lr": 0.1, "eps": 1e-2}, ada_grad),
    "AdaDelta": ({"rho": 0.95, "eps": 1e-2}, ada_delta),
    "RMSprop": ({"lr": 0.1, "alpha": 0.75, "eps": 1e-2}, rmsprop),
    "RMSpropGraves": ({"lr": 0.1, "alpha": 0.75, "momentum": 0.9, "eps": 1e-2}, rmsprop_graves),
    "SMORMS3": ({"lr": 0.1, "eps": 1e-2}, smorms3),
    "MSVAG": ({"lr": 0.1, "beta": 0.9}, msvag),
    "Adam": (ADAM, adam_like()),
    "AdamW": ({**ADAM, "weight_decay_rate": 0.125}, adam_like(decay=0.125)),
    "AMSGrad": (ADAM, adam_like(amsgrad=True)),
    "AdaBound": (BOUND, adam_like(bound=True)),
    "AMSBound": (BOUND, adam_like(amsgrad=True, bound=True)),
}

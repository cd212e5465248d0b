"""Step sizes from an estimate of how noisy each gradient is."""

import numpy as np

from mixprec.optimizer.rules.formulas import RuleFormula


def _smorms3(p, g, states, numbers, a, b):
    mem, mean, mean_square = states
    lr, eps = numbers
    np.add(mem, 1, out=a)
    np.divide(1, a, out=a)  # r
    np.subtract(1, a, out=b)
    np.multiply(mean, b, out=mean)
    np.multiply(mean_square, b, out=mean_square)
    np.multiply(a, g, out=a)
    np.add(mean, a, out=mean)
    np.multiply(a, g, out=a)
    np.add(mean_square, a, out=mean_square)
    np.multiply(mean, mean, out=a)
    np.add(mean_square, eps, out=b)
    np.divide(a, b, out=a)  # x
    np.subtract(1, a, out=b)
    np.multiply(mem, b, out=mem)
    np.add(mem, 1, out=mem)
    np.minimum(a, lr, out=a)
    np.multiply(g, a, out=g)
    np.sqrt(mean_square, out=a)
    np.add(a, eps, out=a)
    np.divide(g, a, out=g)
    np.subtract(p, g, out=p)


# Funk 2015, "RMSprop loses to SMORMS3", http://sifter.org/~simon/journal/20150420.html.
SMORMS3 = RuleFormula(
    states=("mem", "g", "g2"),
    hyperparameters=("lr", "eps"),
    numbers={"lr": "lr", "eps": "eps"},
    host=_smorms3,
    device="""
        const float r = 1 / (mem + 1);
        g = (1 - r) * g + r * grad;
        g2 = (1 - r) * g2 + r * grad * grad;
        const float x = g * g / (g2 + eps);
        param -= grad * (x > lr ? lr : x) / (sqrtf(g2) + eps);
        mem = 1 + mem * (1 - x);
    """,
)


def _msvag(p, g, states, numbers, a, b):
    m, v = states
    lr, one_minus_beta, one_minus_beta_power, rho, one_minus_rho, eta, weight_decay_rate = numbers
    np.subtract(g, m, out=a)
    np.multiply(a, one_minus_beta, out=a)
    np.add(m, a, out=m)
    np.multiply(g, g, out=a)
    np.subtract(a, v, out=a)
    np.multiply(a, one_minus_beta, out=a)
    np.add(v, a, out=v)
    np.divide(m, one_minus_beta_power, out=g)  # m, corrected
    np.multiply(g, g, out=a)
    np.divide(v, one_minus_beta_power, out=b)
    np.subtract(b, a, out=b)
    np.divide(b, one_minus_rho, out=b)  # the variance
    np.multiply(b, rho, out=b)
    np.add(a, b, out=b)
    with np.errstate(invalid="ignore", divide="ignore"):  # 0 / 0 where there has been no gradient yet
        np.divide(a, b, out=a)
    np.clip(a, 0, 1, out=a)
    a[np.isnan(a)] = 0
    np.multiply(g, lr, out=g)
    np.multiply(g, a, out=g)
    np.multiply(p, weight_decay_rate, out=a)
    np.add(g, a, out=g)
    np.multiply(g, eta, out=g)
    np.subtract(p, g, out=p)


# Balles and Hennig 2018, "Dissecting Adam: The Sign, Magnitude and Variance of Stochastic Gradients". The rule keeps
# beta_power, beta to the power of t, itself.
MSVAG = RuleFormula(
    states=("m", "v"),
    hyperparameters=("lr", "beta", "eta", "weight_decay_rate", "beta_power"),
    powers={"beta_power": "beta"},
    numbers={
        "lr": "lr",
        "one_minus_beta": "1 - beta",
        "one_minus_beta_power": "1 - beta_power",
        "rho": "min(pow(1.0 - beta, 2) * (1.0 - pow(beta_power, 2))"
        " / (pow(1.0 - beta_power, 2) * (1.0 - pow(beta, 2))), 0.9999)",
        "one_minus_rho": "1 - min(pow(1.0 - beta, 2) * (1.0 - pow(beta_power, 2))"
        " / (pow(1.0 - beta_power, 2) * (1.0 - pow(beta, 2))), 0.9999)",
        "eta": "eta",
        "weight_decay_rate": "weight_decay_rate",
    },
    host=_msvag,
    device="""
        m += one_minus_beta * (grad - m);
        v += one_minus_beta * (grad * grad - v);
        const float mean = m / one_minus_beta_power;
        const float square = mean * mean;
        const float variance = (v / one_minus_beta_power - square) / one_minus_rho;
        float factor = square / (square + rho * variance);
        factor = factor != factor ? 0.0f : factor < 0 ? 0.0f : factor > 1 ? 1.0f : factor;
        param -= eta * (lr * mean * factor + weight_decay_rate * param);
    """,
)

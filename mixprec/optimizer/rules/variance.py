"""Step sizes from an estimate of how noisy each gradient is."""

from chainer.optimizers.msvag import MSVAGRule
from chainer.optimizers.smorms3 import SMORMS3Rule

from mixprec.optimizer.rules.formulas import RuleFormula, numbers
from mixprec.optimizer.rules.offers import offer

# Funk 2015, "RMSprop loses to SMORMS3", http://sifter.org/~simon/journal/20150420.html.
RuleFormula(
    name="Smorms3",
    rule=SMORMS3Rule,
    states=("mem", "g", "g2"),
    numbers=numbers("lr", "eps"),
    device="""
        const float r = 1 / (mem + 1);
        g = (1 - r) * g + r * grad;
        g2 = (1 - r) * g2 + r * grad * grad;
        const float x = g * g / (g2 + eps);
        param -= grad * (x > lr ? lr : x) / (sqrtf(g2) + eps);
        mem = 1 + mem * (1 - x);
    """,
)
offer("SMORMS3")

# Balles and Hennig 2018, "Dissecting Adam: The Sign, Magnitude and Variance of Stochastic Gradients". The rule itself
# keeps beta_power, beta to the power of t.
RuleFormula(
    name="Msvag",
    rule=MSVAGRule,
    states=("m", "v"),
    powers={"beta_power": "beta"},
    numbers=numbers(
        "lr",
        "eta",
        "weight_decay_rate",
        one_minus_beta="1 - beta",
        one_minus_beta_power="1 - beta_power",
        rho="min(pow(1.0 - beta, 2) * (1.0 - pow(beta_power, 2))"
        " / (pow(1.0 - beta_power, 2) * (1.0 - pow(beta, 2))), 0.9999)",
        one_minus_rho="1 - min(pow(1.0 - beta, 2) * (1.0 - pow(beta_power, 2))"
        " / (pow(1.0 - beta_power, 2) * (1.0 - pow(beta, 2))), 0.9999)",
    ),
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
offer("MSVAG")

"""Learning rates from running sums or averages of squared gradients, without bias correction."""

from chainer.optimizers.ada_delta import AdaDeltaRule
from chainer.optimizers.ada_grad import AdaGradRule
from chainer.optimizers.rmsprop import RMSpropRule
from chainer.optimizers.rmsprop_graves import RMSpropGravesRule

from mixprec.optimizer.rules.formulas import RuleFormula, numbers
from mixprec.optimizer.rules.offers import offer

# Duchi et al. 2011, "Adaptive Subgradient Methods".
RuleFormula(
    name="AdaGrad",
    rule=AdaGradRule,
    states=("h",),
    numbers=numbers("lr", "eps"),
    device="""
        h += grad * grad;
        param -= lr * grad / (sqrtf(h) + eps);
    """,
)
offer("AdaGrad")

# Zeiler 2012, "ADADELTA".
RuleFormula(
    name="AdaDelta",
    rule=AdaDeltaRule,
    states=("msg", "msdx"),
    numbers=numbers("rho", "eps", one_minus_rho="1 - rho"),
    device="""
        msg = rho * msg + one_minus_rho * grad * grad;
        const float dx = sqrtf((msdx + eps) / (msg + eps)) * grad;
        msdx = rho * msdx + one_minus_rho * dx * dx;
        param -= dx;
    """,
)

# Tieleman and Hinton 2012, lecture 6.5 of "Neural Networks for Machine Learning".
_ROOTS = {"RmsProp": "(sqrtf(ms) + eps)", "RmsPropEpsInsideSqrt": "sqrtf(ms + eps)"}
for _name, _root in _ROOTS.items():
    RuleFormula(
        name=_name,
        rule=RMSpropRule,
        switches={"eps_inside_sqrt": _name == "RmsPropEpsInsideSqrt"},
        states=("ms",),
        numbers=numbers("lr", "alpha", "eps", one_minus_alpha="1 - alpha"),
        not_flushed=("eps",),
        device=f"""
        ms = alpha * ms + one_minus_alpha * grad * grad;
        param -= lr * grad / {_root};
    """,
    )
offer("RMSprop")

# Graves 2013, "Generating Sequences With Recurrent Neural Networks", equations (38) to (42).
RuleFormula(
    name="RmsPropGraves",
    rule=RMSpropGravesRule,
    states=("n", "g", "delta"),
    numbers=numbers("lr", "alpha", "momentum", "eps", one_minus_alpha="1 - alpha"),
    device="""
        n = alpha * n + one_minus_alpha * grad * grad;
        g = alpha * g + one_minus_alpha * grad;
        delta = momentum * delta - lr * grad / sqrtf(n - g * g + eps);
        param += delta;
    """,
)
offer("RMSpropGraves", keys=("momentum",))

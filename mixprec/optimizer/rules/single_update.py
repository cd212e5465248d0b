"""The update of one parameter on a GPU, for Chainer's own loop: CuPy kernels made from the rule's formula."""

import functools
import re

from chainer.backends import cuda

from mixprec.optimizer.rules.formulas import CARRIED
from mixprec.optimizer.rules.norms import norm


def update_on_gpu(rule, param, grad):
    """Updates a CuPy array and the state of an update rule in place. Nothing is read from the device.

    Args:
        rule: :class:`~mixprec.optimizer.rules.own_rules.OwnRule`, with its state.
        param: array of the parameter; float64 arrays are computed in float64, all others in float32.
        grad: its gradient.
    """
    formula = rule.formula
    wide = "float64" if param.dtype == "float64" else "float32"
    numbers, made = _numbers(rule, formula, wide)
    states = {name: rule.state[name] for name in formula.states}
    arrays = {"grad": grad}
    if formula.step:
        step = cuda.cupy.empty_like(param)
        code = f"{formula.step} wanted = step;"
        _update(
            f"{formula.name}_step", made, code, numbers, {**arrays, "param": param}, {**states, "wanted": step}, wide
        )
        arrays |= {"step": step, "param_norm": norm(param), "step_norm": norm(step)}
    elif formula.norms:
        arrays |= {"param_norm": norm(param), "grad_norm": norm(grad)}
    _update(formula.name, made, formula.device, numbers, arrays, {"param": param, **states}, wide)
    if formula.carried:
        code = "".join(f"const double {name}_ = {text};" for name, text in formula.carried.items())
        code += "".join(f"{name} = {name}_;" for name in formula.carried)
        carried = {name: rule.state[CARRIED][index : index + 1] for index, name in enumerate(formula.carried)}
        outputs = ", ".join(f"float64 {name}" for name in carried)
        _launch(f"{formula.name}_carried", code, _hyperparameters(rule, formula), outputs, carried)


def _numbers(rule, formula, wide):
    """Returns the numbers of a step as arguments, or their inputs on the device with statements to compute them."""
    if not formula.carried:
        numbers = zip(formula.numbers, formula.numbers_of(rule, rule.t), strict=True)
        return {f"{wide} {name}": number for name, number in numbers}, ""
    carried = {f"float64 {name}": rule.state[CARRIED][index] for index, name in enumerate(formula.carried)}
    made = "".join(f"const float {name}_ = {text};" for name, text in formula.numbers.items())
    # In a scope of their own, as a number may have the name of the hyperparameter that it is computed from.
    named = "".join(f"const float {name} = {name}_;" for name in formula.numbers)
    return {**_hyperparameters(rule, formula), **carried}, f"{made} {{ {named}"


def _hyperparameters(rule, formula):
    values = zip(formula.hyperparameters, formula.hyperparameters_of(rule), strict=True)
    return {f"float64 {name}": value for name, value in values}


def _update(name, made, code, numbers, arrays, outputs, wide):
    """Launches a kernel with the statements of a formula."""
    inputs = {f"T {each}_of": array for each, array in arrays.items()}
    operation = _operation(made, code, tuple(arrays), tuple(outputs), wide)
    _launch(name, operation, {**inputs, **numbers}, ", ".join(f"T {each}_of" for each in outputs), outputs)


@functools.cache  # called for each parameter in each step
def _operation(made, code, arrays, outputs, wide):
    """Returns the code of a kernel: statements of a formula on ``float`` variables named like the arrays."""
    before = "".join(f"const float {each} = {each}_of;" for each in arrays)
    before += "".join(f"float {each} = {each}_of;" for each in outputs)
    after = "".join(f"{each}_of = {each};" for each in outputs)
    code = f"{made} {before} {code} {after}" + "}" * made.count("{")
    if wide == "float64":
        code = re.sub(r"\bfloat\b", "double", code)
        code = re.sub(r"\b(\d+\.?\d*(?:e[-+]?\d+)?)f\b", r"\1", code)
        code = re.sub(r"\b([a-z]+\d*)f\(", r"\1(", code)
    return code


def _launch(name, code, inputs, declared, outputs):
    cuda.elementwise(", ".join(inputs), declared, code, name)(*inputs.values(), *outputs.values())

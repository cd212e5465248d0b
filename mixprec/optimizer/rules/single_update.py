"""The update of one parameter on a GPU, as Chainer's own loop runs it: kernels of CuPy, made of the rule's formula."""

import re

from chainer.backends import cuda

from mixprec.optimizer.rules.formulas import CARRIED
from mixprec.optimizer.rules.norms import norm


def update_on_gpu(rule, param, grad):
    """Updates an array of CuPy and the state of an update rule in place. Nothing is read from the device.

    Args:
        rule: :class:`~mixprec.optimizer.rules.own_rules.OwnRule`, with its state.
        param: array of the parameter.
        grad: its gradient.
    """
    formula = rule.formula
    states = {name: rule.state[name] for name in formula.states}
    numbers, made = _numbers(rule, formula)
    given = {"T grad": grad, **numbers}
    if formula.step:
        step = cuda.cupy.empty_like(param)
        code = _for_any_dtype(made, f"{formula.step} step_ = step;")
        _launch(f"{formula.name}_step", code, {**given, "T param": param}, {**states, "step_": step})
        given |= {"T step": step, "T param_norm": norm(param), "T step_norm": norm(step)}
    elif formula.norms:
        given |= {"T param_norm": norm(param), "T grad_norm": norm(grad)}
    _launch(formula.name, _for_any_dtype(made, formula.device), given, {"param": param, **states})
    if formula.carried:
        code = "".join(f"const double {name}_ = {text};" for name, text in formula.carried.items())
        code += "".join(f"{name} = {name}_;" for name in formula.carried)
        carried = {name: rule.state[CARRIED][place : place + 1] for place, name in enumerate(formula.carried)}
        _launch(f"{formula.name}_carried", code, _hyperparameters(rule, formula), carried, "float64")


def _numbers(rule, formula):
    """Returns the numbers of a step as arguments, or what they are made from on the device, and statements for that."""
    if not formula.carried:
        numbers = zip(formula.numbers, formula.numbers_of(rule, rule.t), strict=True)
        return {f"T {name}": number for name, number in numbers}, ""
    carried = {f"float64 {name}": rule.state[CARRIED][place] for place, name in enumerate(formula.carried)}
    made = "".join(f"const float {name}_ = {text};" for name, text in formula.numbers.items())
    # In a scope of their own, as a number may have the name of the hyperparameter that it is made from.
    named = "".join(f"const float {name} = {name}_;" for name in formula.numbers)
    return {**_hyperparameters(rule, formula), **carried}, f"{made} {{ {named}"


def _hyperparameters(rule, formula):
    values = zip(formula.hyperparameters, formula.hyperparameters_of(rule), strict=True)
    return {f"float64 {name}": value for name, value in values}


def _for_any_dtype(made, code):
    """Returns statements on ``float`` as statements on ``T``, the dtype of the parameter."""
    code = f"{made} {code}" + "}" * made.count("{")
    code = re.sub(r"\b(\d+\.\d*)f\b", r"static_cast<T>(\1)", re.sub(r"\bfloat\b", "T", code))
    return re.sub(r"\b(sqrt|fabs|copysign)f\(", r"\1(", code)


def _launch(name, code, inputs, outputs, dtype="T"):
    declared = ", ".join(f"{dtype} {output}" for output in outputs)
    kernel = cuda.elementwise(", ".join(inputs), declared, code, name)
    kernel(*inputs.values(), *outputs.values())

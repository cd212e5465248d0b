"""Generates files from the declarations of rules and hooks: ``python -m mixprec.optimizer.rules.generate``.

Run it after a change of a formula, of a hyperparameter, or of the list of files. It writes the C++ code of the native
library, which must then be compiled, the names of optimizers for configs and for the package, which need no Chainer,
and the table of rules in the docs.
"""

import json
import pathlib
import textwrap

from mixprec.optimizer.rules.formulas import HOOKS, RULES, elementwise, uses
from mixprec.optimizer.rules.offers import OFFERS
from mixprec.optimizer.rules.own_rules import OwnRule

_PACKAGE = pathlib.Path(__file__).parents[2]
_MARK = "<!-- rules -->"
_WIDTH = 120  # of a line of Python
_NATIVE_RULES, _NATIVE_HOOKS = elementwise(RULES), elementwise(HOOKS)
_HEAD = """\
// Update rules and hooks: generated from mixprec/optimizer/rules by `python -m mixprec.optimizer.rules.generate`.
// Included by update.inl. Each goes over `count` elements.
#include <cmath>

#include "update.h"

namespace native {
namespace INSTRUCTIONS {
"""


_HEAD_OF_MODULES = [
    "",
    "Generated from mixprec/optimizer/rules by ``python -m mixprec.optimizer.rules.generate``.",
    '"""',
]


def files():
    """Returns the text of each generated file by its path."""
    page = _PACKAGE.parent / "docs" / "batched-update.md"
    return {
        _PACKAGE / "native" / "source" / "rules.inl": _source(),
        _PACKAGE / "native" / "source" / "rule_names.cpp": _names_of_formulas(),
        _PACKAGE / "base" / "optimizer_names.py": _names_of_optimizers(),
        _PACKAGE / "optimizer" / "rules" / "own_optimizers.py": _own_optimizers(),
        page: _with_table(page.read_text()),
    }


def _source():
    parts = [_HEAD]
    parts += [_function("rule", name, formula, formula.states) for name, formula in _NATIVE_RULES.items()]
    parts += [_function("hook", name, formula) for name, formula in _NATIVE_HOOKS.items()]
    parts += [_table("RULES", "rule", _NATIVE_RULES, "float *, const float *, float *const *, long")]
    parts += [_table("HOOKS", "hook", _NATIVE_HOOKS, "const float *, float *, long")]
    parts += ["}  // namespace INSTRUCTIONS\n}  // namespace native\n"]
    return "\n".join(parts)


def _names_of_formulas():
    return "\n".join(
        [
            "// The formulas of rules.inl, which is generated with this file.",
            '#include "update.h"\n',
            "namespace native {\n",
            _names("RULE_NAMES", _NATIVE_RULES),
            _names("HOOK_NAMES", _NATIVE_HOOKS),
            "}  // namespace native\n",
        ]
    )


def _function(kind, name, formula, states=()):
    is_rule = kind == "rule"
    arguments = "float *__restrict param_, const float *__restrict grad_, float *const *states_"
    if not is_rule:
        arguments = "const float *__restrict param_, float *__restrict grad_"
    lines = [f"void {kind}{name}(", f"    const float *numbers_, {arguments}, long count_) {{"]
    lines.append(_declared("const float ", (f"{number} = numbers_[{i}]" for i, number in enumerate(formula.numbers))))
    if states:
        lines.append(_declared("float ", (f"*__restrict {state}_s = states_[{i}]" for i, state in enumerate(states))))
    lines.append("    for (long i_ = 0; i_ < count_; ++i_) {")
    if is_rule:
        lines.append(
            _declared("    float ", ["&param = param_[i_]", *(f"&{state} = {state}_s[i_]" for state in states)])
        )
        lines.append("        const float grad = grad_[i_];")
    else:
        lines.append("        float &grad = grad_[i_];")
        if uses(formula.device, "param"):
            lines.append("        const float param = param_[i_];")
    lines += [f"        {line.strip()}" for line in formula.device.strip().splitlines() if line.strip()]
    return "\n".join([*lines, "    }", "}", ""])


def _declared(kind, variables):
    return f"    {kind}{', '.join(variables)};"


def _table(table, kind, formulas, arguments):
    functions = "".join(f"    {kind}{name},\n" for name in formulas)
    return f"void (*const {table}[])(const float *, {arguments}) = {{\n{functions}}};\n"


def _names(table, formulas):
    rows = "".join(
        f'    {{"{name}", {len(formula.numbers)}, {len(getattr(formula, "states", ()))}}},\n'
        for name, formula in formulas.items()
    )
    return f"const FormulaName {table}[] = {{\n{rows}    {{}},\n}};\n"


def _names_of_optimizers():
    keys = dict.fromkeys(key for each in OFFERS.values() for key in each.keys)
    tables = {
        "OPTIMIZERS": ("All optimizers, in the order of the reference.", tuple(OFFERS)),
        "OWN": ("The optimizers of this package, each with its module.", _offered("module")),
        "RATES": (
            "The name of the learning rate, where it is not lr.",
            {name: rate for name, rate in _offered("rate").items() if rate != "lr"},
        ),
        "DECAYS": ("The name of the weight decay in the formula, where there is one.", _offered("decay")),
        "DECOUPLED": (
            "Optimizers whose weight decay is a share of the parameter that follows the learning rate.",
            tuple(_offered("is_decoupled")),
        ),
        "WITH_AVERAGE": (
            "Optimizers whose models are evaluated at an average of their weights.",
            tuple(_offered("has_average")),
        ),
        "WITH_KEY": (
            "Keys of the section optimizer that only some optimizers have as an argument, and which.",
            {key: tuple(name for name, own in _offered("keys").items() if key in own) for key in keys},
        ),
        "FIXED": ("Arguments that are the same in all configs.", _offered("fixed")),
    }
    lines = [
        '"""The optimizers that a config can name, and the public ones of this package, without an import of Chainer.',
        *_HEAD_OF_MODULES,
        "# fmt: off",
    ]
    for name, (comment, table) in tables.items():
        text = f"{name} = {table}".replace("'", '"').replace(": ", ":~")  # a key and its value stay together
        rows = textwrap.wrap(text, _WIDTH, subsequent_indent="    ", break_long_words=False)
        lines += ["", f"# {comment}", *(row.replace("~", " ") for row in rows)]
    return "\n".join(lines) + "\n"


def _offered(attribute):
    """Returns an attribute of all offered optimizers that have it, by their names."""
    found = {name: getattr(each, attribute) for name, each in OFFERS.items()}
    return {name: value for name, value in found.items() if value}


def _own_optimizers():
    own = _offered("module")
    lines = [
        '"""The public optimizers of this package: what a type checker reads as names of ``mixprec``.',
        *_HEAD_OF_MODULES,
        "",
        *(f"from {module} import {name}" for name, module in sorted(own.items(), key=lambda item: item[1])),
        "",
        f"__all__ = {json.dumps(sorted(own, key=lambda name: (not name.isupper(), name)))}",
    ]
    return "\n".join(lines) + "\n"


def _with_table(text):
    """Returns the page with a new table of rules."""
    before, _, after = text.split(_MARK)
    rows = ["| rule | states | hyperparameters | on NumPy |", "|---|---|---|---|", *map(_row, RULES.values())]
    return "\n".join([f"{before}{_MARK}", *rows, f"{_MARK}{after}"])


def _row(formula):
    whose, hyperparameters = "chainer", formula.hyperparameters
    if issubclass(formula.rule, OwnRule):
        declared = formula.rule.optimizer_class.declared().items()
        whose = "mixprec"
        hyperparameters = [f"{name}={each.default}" for name, each in declared if name not in formula.switches]
    switches = [f"{name}={value}" for name, value in formula.switches.items()]
    rule = f"{formula.rule.__name__.removesuffix('Rule')} ({', '.join([whose, *switches])})"
    where = "native library" if formula.is_elementwise else "Chainer's loop: it needs norms of whole parameters"
    return f"| {rule} | {', '.join(formula.states) or 'none'} | {', '.join(hyperparameters)} | {where} |"


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text)

"""The C++ code of the formulas for the native library; ``python -m mixprec.optimizer.batch.native_source`` writes it.

To be run after a change of a formula. Nothing imports it at run time: the files that it writes are compiled.
"""

import pathlib

from mixprec.optimizer.batch.kernel_program import uses
from mixprec.optimizer.batch.native_names import HOOKS, RULES

PATH = pathlib.Path(__file__).parents[2] / "native" / "source" / "rules.inl"
NAMES_PATH = PATH.with_name("rule_names.cpp")
_HEAD = """\
// Update rules and hooks: generated from mixprec/optimizer/rules by `python -m mixprec.optimizer.batch.native_source`.
// Included by update.inl. Each goes over `count` elements.
#include <cmath>

#include "update.h"

namespace native {
namespace INSTRUCTIONS {
"""


def source():
    """Returns the text of ``rules.inl``."""
    parts = [_HEAD]
    parts += [_function("rule", name, formula, formula.states) for name, formula in RULES.items()]
    parts += [_function("hook", name, formula) for name, formula in HOOKS.items()]
    parts += [_table("RULES", "rule", RULES, "float *, const float *, float *const *, long")]
    parts += [_table("HOOKS", "hook", HOOKS, "const float *, float *, long")]
    parts += ["}  // namespace INSTRUCTIONS\n}  // namespace native\n"]
    return "\n".join(parts)


def names():
    """Returns the text of ``rule_names.cpp``."""
    return "\n".join(
        [
            "// The formulas of rules.inl, which is generated with this file.",
            '#include "update.h"\n',
            "namespace native {\n",
            _names("RULE_NAMES", RULES),
            _names("HOOK_NAMES", HOOKS),
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


if __name__ == "__main__":
    PATH.write_text(source())
    NAMES_PATH.write_text(names())

"""The CUDA source of the batched update: the files in ``kernels/``, and a generated C++ class for each program.

A program is the code for the elements of a parameter: the hooks, in order, and the update rule. Some kernel files are
shared with the backends.
"""

from mixprec.backends.launch import text_of
from mixprec.optimizer.rules.formulas import uses
from mixprec.precision.loss_scale import DynamicLossScale
from mixprec.precision.step_counter import StepCounter
from mixprec.precision.step_state import kernel_code

MAX_STATES = 3
_SHARED = ("words.cuh", "philox.cuh")  # shared with the kernels of the primitives
_FILES = ("common.cuh", None, "elements.cuh", "check.cu", "update.cu")  # None: the programs


class KernelProgram:
    """The code of an update rule and its hooks.

    Args:
        entry: :class:`~mixprec.optimizer.batch.entries.Entry`; entries with the same :meth:`key` have the same program.

    Attributes:
        norms: the norms that hooks and rule need, in the order in which they must be computed: ``"each"`` or ``"all"``.
        passes: number of launches of ``check`` that a parameter with this program takes part in.
    """

    def __init__(self, entry):
        self._formula = entry.formula
        self._hooks = [(hook.formula, hook.counted) for hook in entry.hooks]
        rule_norms = self._formula is not None and bool(self._formula.norms or self._formula.step)
        self.norms = [hook.norms for hook, _ in self._hooks if hook.norms] + ["each"] * rule_norms
        self._ends_with_norms = bool(self._hooks and self._hooks[-1][0].norms and not rule_norms)
        known = rule_norms or self._ends_with_norms or self._formula is None
        self.passes = max(len(self.norms) + (0 if known else 1), 1) if self.norms else 1
        if self._formula is not None and len(self._formula.states) > MAX_STATES:
            raise ValueError(f"{len(self._formula.states)} states; the kernels know {MAX_STATES} at most")

    @staticmethod
    def key(entry):
        """Returns a key that is equal for entries with the same program, as long as they live."""
        return id(entry.formula), tuple((id(hook.formula), hook.counted) for hook in entry.hooks)

    @property
    def numbers(self):
        """Number of the numbers of a step."""
        return sum(len(owner.numbers) for owner in self._owners())

    @property
    def carries(self):
        """Whether the rule carries numbers from step to step."""
        return self._formula is not None and bool(self._formula.carried)

    def _owners(self):
        return [hook for hook, _ in self._hooks] + [self._formula] * (self._formula is not None)

    def code(self, index):
        """Returns the source of ``Program<index>``."""
        formula = self._formula
        hook_numbers = sum(len(hook.numbers) for hook, _ in self._hooks)
        texts = [hook.device for hook, _ in self._hooks]
        constants = {
            "STATES": len(formula.states) if formula else 0,
            "NUMBERS": self.numbers,
            "HOOK_NUMBERS": hook_numbers,
            "POINTS": len(self.norms),
            "PASSES": self.passes,
            "NOISES": sum(hook.noise for hook, _ in self._hooks),
            "UPDATES": int(formula is not None),
            "STEPS": int(formula is not None and bool(formula.step)),
            "CARRIED": int(self.carries),
            "ENDS_WITH_NORMS": int(self._ends_with_norms),
            "LOOKS_AT_PARAM": int("each" in self.norms or any(uses(text, "param") for text in texts)),
        }
        lines = [f"template <> struct Program<{index}> {{"]
        lines += [f"static constexpr int {name} = {value};" for name, value in constants.items()]
        lines += [*self._number(), *self._hooks_code()]
        if self._ends_with_norms:
            hook = self._hooks[-1][0]
            first = hook_numbers - len(hook.numbers)
            arguments = "const float* numbers_, const Norms& norms_, float param, float& grad"
            lines += [_function("void last_hook", arguments), *_block(hook, first, _norms("norms_")), "}"]
        if formula is not None:
            lines += self._rule(hook_numbers)
        if self.carries:
            lines += self._carry()
        return "\n".join([*lines, "};"])

    def _number(self):
        """The formulas of the numbers, from the hyperparameters of hooks and rule, which follow ``t`` in the table."""
        arguments = "int number_, const double* values_, const double* carried_, double applied_"
        yield _function("float number", arguments)
        yield "switch (number_) {"
        number, value = 0, 1
        counted = [hook_counted for _, hook_counted in self._hooks] + [True]
        for owner, t_counts in zip(self._owners(), counted, strict=False):
            powers = owner.powers
            for formula in owner.numbers.values():
                needed = {name for name in owner.hyperparameters if uses(formula, name)}
                needed |= {powers[name] for name in needed & set(powers)}
                yield f"case {number}: {{"
                if uses(formula, "t"):
                    yield f"const double t = values_[0] + applied_ + {int(t_counts)};"
                for index, name in sorted(enumerate(owner.hyperparameters), key=lambda item: item[1] in powers):
                    if name in needed:
                        moved = f" * pow({powers[name]}, applied_)" if name in powers else ""
                        yield f"const double {name} = values_[{value + index}]{moved};"
                yield from _carried(owner, formula)
                yield f"return static_cast<float>({formula}); }}"
                number += 1
            value += len(owner.hyperparameters)
        yield "}\nreturn 0; }"

    def _carry(self):
        """The formulas of the numbers that the rule carries; the numbers of hooks precede the rule's."""
        formula, texts = self._formula, " ".join(self._formula.carried.values())
        first = 1 + sum(len(hook.hyperparameters) for hook, _ in self._hooks)
        yield _function("void carry", "const double* values_, double* carried_")
        for index, name in enumerate(formula.hyperparameters):
            if uses(texts, name):
                yield f"const double {name} = values_[{first + index}];"
        yield from _carried(formula, texts)
        for index, text in enumerate(formula.carried.values()):
            yield f"carried_[{index}] = {text};"
        yield "}"

    def _hooks_code(self):
        arguments = (
            "int points_, const float* numbers_, const Norms* norms_, const float* noise_, float param, float& grad"
        )
        yield _function("void hooks", arguments)
        number = point = noise = 0
        for hook, _ in self._hooks:
            given = {}
            if hook.norms:
                yield f"if (points_ <= {point}) return;"
                given |= _norms(f"norms_[{point}]")
                point += 1
            if hook.noise:
                given["noise"] = f"noise_[{noise}]"
                noise += 1
            yield from _block(hook, number, given)
            number += len(hook.numbers)
        yield "}"

    def _rule(self, first):
        formula = self._formula
        given = {}
        if formula.norms or formula.step:
            given = _norms(f"norms_[{len(self.norms) - 1}]", "step_norm" if formula.step else "grad_norm")
        arguments = "const float* numbers_, const Norms* norms_, float& param, float grad, float* states_"
        yield _function("void rule", arguments)
        yield from _block(formula, first, given, f"{formula.step}\n{formula.device}", formula.states)
        yield "}"
        if formula.step:
            yield _function("float step", "const float* numbers_, float param, float grad, float* states_")
            yield from _block(formula, first, {}, f"{formula.step}\nreturn step;", formula.states)
            yield "}"


def source_of(programs, threads, chunk):
    """Returns the CUDA source for a tuple of :class:`KernelProgram`.

    Args:
        programs: the programs of the parameters.
        threads: number of threads of a block, a multiple of 32.
        chunk: number of elements of a parameter for a block, a multiple of 8.
    """
    macros = {
        "THREADS": threads,
        "CHUNK": chunk,
        "MAX_STATES": MAX_STATES,
        "MAX_NUMBERS": max([1, *(program.numbers for program in programs)]),
        "MAX_POINTS": points_of(programs),
        "PROGRAMS": len(programs),
        "CARRIES": int(any(program.carries for program in programs)),
    }
    parts = [f"#define {name} {value}" for name, value in macros.items()]
    parts += [text_of("mixprec.backends", name) for name in _SHARED]
    for name in _FILES:
        if name is None:
            parts.append("template <int P> struct Program;")
            parts += [program.code(index) for index, program in enumerate(programs)]
            parts.append(kernel_code(counter=StepCounter, scale=DynamicLossScale))
        else:
            parts.append(text_of("mixprec.optimizer.batch", name))
    return "\n".join([*parts, ""])


def points_of(programs):
    """Returns the number of norms per parameter for which the table of norms has space."""
    return max([1, *(len(program.norms) for program in programs)])


def _carried(owner, text):
    """Declares the carried numbers that a formula uses, with their values from before the step."""
    for index, name in enumerate(owner.carried):
        if uses(text, name):
            yield f"const double {name} = carried_[{index}];"


def _function(name, arguments):
    return f"static __device__ __forceinline__ {name}({arguments}) {{"


def _norms(of, second="grad_norm"):
    return {"param_norm": f"{of}.param", second: f"{of}.grad"}


def _block(owner, first, given, text=None, states=()):
    """The code of a hook or a rule in a scope of its own, with its variables declared by name."""
    text = text or owner.device
    values = {name: f"numbers_[{first + index}]" for index, name in enumerate(owner.numbers)} | given
    constants = [f"const float {name} = {value};" for name, value in values.items() if uses(text, name)]
    references = [f"float& {name} = states_[{index}];" for index, name in enumerate(states)]
    return ["{", *constants, *references, text, "}"]

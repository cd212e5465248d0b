// The update of many parameters: gradients are unscaled, checked and run through hooks and an update rule block by
// block, in memory that stays in the processor's cache. See update_module.cpp for who holds the arrays.
#pragma once

#include "dtypes.h"

namespace native {

constexpr int MOST_STATES = 3, MOST_HOOKS = 8, MOST_NUMBERS = 16;

// A parameter. All arrays have `size` elements.
struct Updated {
    void *param;   // FP16 or BF16; nullptr if the master is the parameter
    void *shadow;  // a copy of `param` as it was last rounded: what the program has written since differs
    float *master;
    float *states[MOST_STATES];
    const void *gradient;  // nullptr if there is none: between steps
    long size;
    float inverse;  // what unscales the gradient
    Dtype dtype, gradient_dtype;
};

struct Piece {  // of a parameter; `last` is the first element behind it
    long number, first, last;
};

struct Work {
    Updated *updated;
    Piece *pieces;
    long *tasks;  // the first piece of each, and at last the number of pieces
    long task_count;
    int rule, hooks[MOST_HOOKS], hook_count;  // places in the lists of rules.inl; rule is -1 if there is none
};

enum Found { GRADIENTS_ARE_FINITE = 1, FINITE_AFTER_HOOKS = 2 };

struct Update {
    // Takes over into the masters what was written into rounded parameters, and looks at the gradients, if there are
    // any, before and after the hooks; returns Found.
    int (*check)(const Work &work, const float (*hook_numbers)[MOST_NUMBERS]);
    // Runs hooks and rule, and rounds the masters into the parameters.
    void (*update)(const Work &work, const float (*hook_numbers)[MOST_NUMBERS], const float *numbers);
};

struct FormulaName {
    const char *name;
    int numbers, states;
};
extern const FormulaName RULE_NAMES[], HOOK_NAMES[];  // up to one without a name

}  // namespace native

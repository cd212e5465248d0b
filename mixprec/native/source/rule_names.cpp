// The formulas of rules.inl, which is generated with this file.
#include "update.h"

namespace native {

const FormulaName RULE_NAMES[] = {
    {"Sgd", 1, 0},
    {"MomentumSgd", 2, 1},
    {"CorrectedMomentumSgd", 2, 1},
    {"NesterovAg", 4, 1},
    {"Adam", 6, 2},
    {"AmsGrad", 6, 3},
    {"AdaBound", 8, 2},
    {"AmsBound", 8, 3},
    {"AdaGrad", 2, 1},
    {"AdaDelta", 3, 2},
    {"RmsProp", 4, 1},
    {"RmsPropEpsInsideSqrt", 4, 1},
    {"RmsPropGraves", 5, 3},
    {"Smorms3", 2, 3},
    {"Msvag", 7, 2},
    {"LarsUnadapted", 3, 1},
    {"LambUnadapted", 7, 2},
    {"Sgdw", 3, 1},
    {"SgdwNesterov", 3, 1},
    {"ScheduleFreeSgd", 5, 1},
    {"Lion", 6, 1},
    {},
};

const FormulaName HOOK_NAMES[] = {
    {"WeightDecay", 1, 0},
    {"Lasso", 1, 0},
    {"GradientHardClipping", 2, 0},
    {},
};

}  // namespace native

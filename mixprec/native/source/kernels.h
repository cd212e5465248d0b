// The functions that are compiled for each instruction set.
#pragma once

#include "convolution.h"
#include "elementwise.h"
#include "update.h"

namespace native {

struct Kernels {
    Elementwise elementwise;
    Convolutions convolutions;
    Update update;
};

extern const Kernels *kernels;  // those in use; module.cpp chooses

}  // namespace native

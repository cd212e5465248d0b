// The functions that are compiled for each instruction set.
#pragma once

#include "convolution.h"
#include "update.h"
#include "batch_norm.h"
#include "elementwise.h"
#include "pooling.h"

namespace native {

struct Kernels {
    Elementwise elementwise;
    Convolutions convolutions[3];  // by Dtype
    Update update;
    BatchNorm batch_norm;
    Pooling pooling;
};

extern const Kernels *kernels;  // those in use; module.cpp chooses

}  // namespace native

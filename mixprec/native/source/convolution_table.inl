// The convolutions of arrays of a storage dtype, as convolution.h has them.
#pragma once
#include "convolution.inl"
#include "convolution_wgrad.inl"
#include "kernels.h"

namespace native {

extern const Kernels AVX512;

namespace INSTRUCTIONS {

template <class Stored>
struct Typed {
    static bool fprop(const Convolution &of, const void *x, const void *w, const float *bias, bool relu, void *y) {
        return fprop_of(
            of, static_cast<const Stored *>(x), static_cast<const Stored *>(w), bias, relu, static_cast<Stored *>(y));
    }
    static bool dgrad(const Convolution &of, const void *dy, const void *w, void *dx) {
        typedef typename OperandOf<Stored>::Operand Operand;
        if constexpr (Numbers<Operand>::COUNT > 1)  // pairs do not suit an odd number of filters
            if (of.filters / of.groups % 2) return AVX512.convolutions[BFLOAT].dgrad(of, dy, w, dx);
        return dgrad_of<Operand>(
            of, static_cast<const Stored *>(dy), static_cast<const Stored *>(w), static_cast<Stored *>(dx));
    }
    static bool wgrad(const Convolution &of, const void *x, const void *dy, void *dw) {
        return wgrad_of(of, static_cast<const Stored *>(x), static_cast<const Stored *>(dy), static_cast<Stored *>(dw));
    }
    static constexpr Convolutions TABLE = {.fprop = fprop, .dgrad = dgrad, .wgrad = wgrad};
};

}  // namespace INSTRUCTIONS
}  // namespace native

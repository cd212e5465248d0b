// Convolutions of arrays of any storage dtype.
#pragma once
#include "convolution.inl"
#include "convolution_wgrad.inl"

namespace native {
namespace INSTRUCTIONS {

bool fprop(const Convolution &of, const void *x, const void *w, const float *bias, bool relu, void *y) {
    bool is_done = false;
    of_dtype(of.dtype, [&](auto tag) {
        using Stored = typename decltype(tag)::type;
        is_done = fprop_of(
            of, static_cast<const Stored *>(x), static_cast<const Stored *>(w), bias, relu, static_cast<Stored *>(y));
    });
    return is_done;
}

bool dgrad(const Convolution &of, const void *dy, const void *w, void *dx) {
    bool is_done = false;
    of_dtype(of.dtype, [&](auto tag) {
        using Stored = typename decltype(tag)::type;
        typedef typename OperandOf<Stored>::Operand Operand;
        bool is_even = of.filters / of.groups % Numbers<Operand>::COUNT == 0;
        auto dgrad_by = is_even ? dgrad_of<Operand, Stored> : dgrad_of<float, Stored>;
        is_done = dgrad_by(
            of, static_cast<const Stored *>(dy), static_cast<const Stored *>(w), static_cast<Stored *>(dx));
    });
    return is_done;
}

bool wgrad(const Convolution &of, const void *x, const void *dy, void *dw) {
    bool is_done = false;
    of_dtype(of.dtype, [&](auto tag) {
        using Stored = typename decltype(tag)::type;
        is_done = wgrad_of(
            of, static_cast<const Stored *>(x), static_cast<const Stored *>(dy), static_cast<Stored *>(dw));
    });
    return is_done;
}

}  // namespace INSTRUCTIONS
}  // namespace native

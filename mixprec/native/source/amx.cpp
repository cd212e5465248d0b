// Convolutions of BF16 arrays by AMX, the matrix unit of Intel's servers since 2023. Other dtypes, and what pairs do not
// suit, are computed by AVX-512.
#define INSTRUCTIONS amx
#define TILES
#include "convolution.inl"
#include "convolution_wgrad.inl"

namespace native {

extern const Convolutions AMX, AVX512_BF16;

namespace INSTRUCTIONS {

bool fprop(const Convolution &of, const void *x, const void *w, const float *bias, bool relu, void *y) {
    if (of.dtype != BFLOAT) return AVX512_BF16.fprop(of, x, w, bias, relu, y);
    return fprop_of(of, static_cast<const Bfloat *>(x), static_cast<const Bfloat *>(w), bias, relu, static_cast<Bfloat *>(y));
}

bool dgrad(const Convolution &of, const void *dy, const void *w, void *dx) {
    if (of.dtype != BFLOAT || of.filters / of.groups % 2) return AVX512_BF16.dgrad(of, dy, w, dx);
    return dgrad_of<Pair>(of, static_cast<const Bfloat *>(dy), static_cast<const Bfloat *>(w), static_cast<Bfloat *>(dx));
}

bool wgrad(const Convolution &of, const void *x, const void *dy, void *dw) {
    if (of.dtype != BFLOAT) return AVX512_BF16.wgrad(of, x, dy, dw);
    return wgrad_of(of, static_cast<const Bfloat *>(x), static_cast<const Bfloat *>(dy), static_cast<Bfloat *>(dw));
}

}  // namespace INSTRUCTIONS

const Convolutions AMX = {.fprop = INSTRUCTIONS::fprop, .dgrad = INSTRUCTIONS::dgrad, .wgrad = INSTRUCTIONS::wgrad};

}  // namespace native

// Convolutions for AVX-512 with AVX512_BF16: Intel's servers since 2020, AMD since 2022. Those of BF16 arrays multiply
// pairs, see operands.h.
#define INSTRUCTIONS avx512bf16
#include "convolution_dtypes.inl"

namespace native {

extern const Convolutions AVX512_BF16;
const Convolutions AVX512_BF16 = {
    .fprop = INSTRUCTIONS::fprop, .dgrad = INSTRUCTIONS::dgrad, .wgrad = INSTRUCTIONS::wgrad};

}  // namespace native

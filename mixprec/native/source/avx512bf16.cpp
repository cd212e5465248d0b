// Convolutions of BF16 arrays by AVX512_BF16, which multiplies pairs, see operands.h: Intel's servers since 2020,
// AMD since 2022.
#define INSTRUCTIONS avx512bf16
#include "convolution_table.inl"

namespace native {

extern const Convolutions AVX512_BF16;
const Convolutions AVX512_BF16 = INSTRUCTIONS::Typed<Bfloat>::TABLE;

}  // namespace native

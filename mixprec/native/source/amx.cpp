// Convolutions of BF16 arrays by AMX, the matrix unit of Intel's servers since 2023.
#define INSTRUCTIONS amx
#define TILES
#include "convolution_table.inl"

namespace native {

extern const Convolutions AMX;
const Convolutions AMX = INSTRUCTIONS::Typed<Bfloat>::TABLE;

}  // namespace native

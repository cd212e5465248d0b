// Includes everything that is compiled for an instruction set: by avx2.cpp and avx512.cpp, which define INSTRUCTIONS,
// a namespace, and KERNELS, the table of its functions.
#include "kernels.h"

#include "convolution_table.inl"
#include "update.inl"
#include "batch_norm.inl"
#include "elementwise.inl"
#include "dropout.inl"
#include "pooling.inl"

namespace native {

extern const Kernels KERNELS;
const Kernels KERNELS = {
    .elementwise = {.convert = INSTRUCTIONS::convert,
                    .add = INSTRUCTIONS::add_arrays,
                    .relu = INSTRUCTIONS::relu_of,
                    .relu_backward = INSTRUCTIONS::relu_backward,
                    .dropout = INSTRUCTIONS::dropout,
                    .transpose = INSTRUCTIONS::transpose},
    .convolutions = {INSTRUCTIONS::Typed<float>::TABLE, INSTRUCTIONS::Typed<Half>::TABLE,
                     INSTRUCTIONS::Typed<Bfloat>::TABLE},
    .update = {.check = INSTRUCTIONS::check_gradients, .update = INSTRUCTIONS::update_all},
    .batch_norm = {.moments = INSTRUCTIONS::moments,
                   .affine = INSTRUCTIONS::affine,
                   .gradient_sums = INSTRUCTIONS::gradient_sums,
                   .combine = INSTRUCTIONS::combine},
    .pooling = {.max_pool = INSTRUCTIONS::max_pool,
                .max_pool_backward = INSTRUCTIONS::max_pool_backward,
                .average_pool = INSTRUCTIONS::average_pool,
                .average_pool_backward = INSTRUCTIONS::average_pool_backward,
                .global_average_pool = INSTRUCTIONS::global_average_pool},
};

}  // namespace native

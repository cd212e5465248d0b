// Includes everything that is compiled for an instruction set: by avx2.cpp and avx512.cpp, which define INSTRUCTIONS,
// a namespace, and KERNELS, the table of its functions.
#include "kernels.h"

#include "convolution.inl"
#include "convolution_wgrad.inl"
#include "update.inl"
#include "batch_norm.inl"
#include "elementwise.inl"
#include "pooling.inl"

namespace native {

extern const Kernels KERNELS;
const Kernels KERNELS = {
    {INSTRUCTIONS::convert, INSTRUCTIONS::add_arrays, INSTRUCTIONS::relu_of, INSTRUCTIONS::relu_backward,
     INSTRUCTIONS::transpose},
    {INSTRUCTIONS::fprop, INSTRUCTIONS::dgrad, INSTRUCTIONS::wgrad},
    {INSTRUCTIONS::check_gradients, INSTRUCTIONS::update_all},
    {INSTRUCTIONS::moments, INSTRUCTIONS::affine, INSTRUCTIONS::gradient_sums, INSTRUCTIONS::combine},
    {INSTRUCTIONS::max_pool, INSTRUCTIONS::max_pool_backward, INSTRUCTIONS::average_pool,
     INSTRUCTIONS::average_pool_backward, INSTRUCTIONS::global_average_pool},
};

}  // namespace native

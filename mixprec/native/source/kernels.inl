// Includes everything that is compiled for an instruction set: by avx2.cpp and avx512.cpp, which define INSTRUCTIONS,
// a namespace, and KERNELS, the table of its functions.
#include "kernels.h"

#include "convolution.inl"
#include "convolution_wgrad.inl"
#include "elementwise.inl"
#include "update.inl"

namespace native {

extern const Kernels KERNELS;
const Kernels KERNELS = {
    {INSTRUCTIONS::convert, INSTRUCTIONS::add_arrays},
    {INSTRUCTIONS::fprop, INSTRUCTIONS::dgrad, INSTRUCTIONS::wgrad},
    {INSTRUCTIONS::check_gradients, INSTRUCTIONS::update_all},
};

}  // namespace native

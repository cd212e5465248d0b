// The kernels for AVX-512: Intel's servers since 2017, AMD since 2022. setup.py has the flags of the
// compiler.
#define INSTRUCTIONS avx512
#define KERNELS AVX512
#include "kernels.inl"

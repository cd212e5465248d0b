// The kernels for AVX2 with FMA and F16C: Intel since 2013, AMD since 2017. setup.py has the flags of the compiler.
#define INSTRUCTIONS avx2
#define KERNELS AVX2
#include "kernels.inl"

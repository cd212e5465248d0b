// The kernels for AVX2 with FMA and F16C: Intel since 2013, AMD since 2017.
#pragma GCC target("avx2,fma,f16c")
#define INSTRUCTIONS avx2
#define KERNELS AVX2
#include "kernels.inl"

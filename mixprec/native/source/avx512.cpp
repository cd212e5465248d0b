// The kernels for AVX-512: Intel's servers since 2017, AMD since 2022.
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
#define INSTRUCTIONS avx512
#define KERNELS AVX512
#include "kernels.inl"

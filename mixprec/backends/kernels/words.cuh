// Numbers in memory, and those of 16 bits as float32: what all kernels of mixprec share.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define WARP 32

enum Dtype { FLOAT16, BFLOAT16, FLOAT32 };

#ifndef HOST_LAUNCH
// Arrays are accessed by these only. The compiler splits four floats that C++ stores at once into four stores again,
// and does not know that the addresses, which are numbers, are those of global memory. In the order they are written.
__device__ __forceinline__ void load_four(u64 address, float* x) {
    asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3]) : "l"(address));
}

__device__ __forceinline__ void load_four(u64 address, u32* x) {
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "l"(address));
}

__device__ __forceinline__ void load_two(u64 address, u32* x) {
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(x[0]), "=r"(x[1]) : "l"(address));
}

__device__ __forceinline__ void load_one(u64 address, float& x) {
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(x) : "l"(address));
}

__device__ __forceinline__ void load_one(u64 address, u16& x) {
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(x) : "l"(address));
}

__device__ __forceinline__ void store_four(u64 address, const float* x) {
    asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};"
                 :: "l"(address), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]));
}

__device__ __forceinline__ void store_four(u64 address, const u32* x) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 :: "l"(address), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]));
}

__device__ __forceinline__ void store_two(u64 address, const u32* x) {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" :: "l"(address), "r"(x[0]), "r"(x[1]));
}

__device__ __forceinline__ void store_one(u64 address, float x) {
    asm volatile("st.global.f32 [%0], %1;" :: "l"(address), "f"(x));
}

__device__ __forceinline__ void store_one(u64 address, u16 x) {
    asm volatile("st.global.u16 [%0], %1;" :: "l"(address), "h"(x));
}

__device__ __forceinline__ float half_to_float(u16 bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

__device__ __forceinline__ u16 float_to_half(float x) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
#endif

__device__ __forceinline__ float bfloat_to_float(u16 bits) {
    return __uint_as_float(static_cast<u32>(bits) << 16);
}

// In integers, as there are GPUs without an instruction for it.
__device__ __forceinline__ u16 float_to_bfloat(float x) {
    const u32 bits = __float_as_uint(x);
    return x != x ? 0x7fff : static_cast<u16>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

__device__ __forceinline__ float widened(int dtype, u16 bits) {
    return dtype == FLOAT16 ? half_to_float(bits) : bfloat_to_float(bits);
}

__device__ __forceinline__ u16 rounded(int dtype, float x) {
    return dtype == FLOAT16 ? float_to_half(x) : float_to_bfloat(x);
}

// N words of 32 bits; of 16 bits if N is 0.
template <int N>
__device__ __forceinline__ void load_words(u64 address, u32* x) {
    if constexpr (N == 0) {
        u16 bits;
        load_one(address, bits);
        x[0] = bits;
    } else if constexpr (N == 1) {
        float bits;
        load_one(address, bits);
        x[0] = __float_as_uint(bits);
    } else if constexpr (N == 2) {
        load_two(address, x);
    } else {
#pragma unroll
        for (int k = 0; k < N; k += 4) load_four(address + k * 4, x + k);
    }
}

template <int N>
__device__ __forceinline__ void store_words(u64 address, const u32* x) {
    if constexpr (N == 0) {
        store_one(address, static_cast<u16>(x[0]));
    } else if constexpr (N == 1) {
        store_one(address, __uint_as_float(x[0]));
    } else if constexpr (N == 2) {
        store_two(address, x);
    } else {
#pragma unroll
        for (int k = 0; k < N; k += 4) store_four(address + k * 4, x + k);
    }
}

// Whether `blocks` blocks that come here are done but for this one. What they wrote can be read then, past the
// first-level cache.
__device__ __forceinline__ bool is_last_block(u32* counter, u32 blocks) {
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicAdd(counter, 1u) == blocks - 1;
        if (last) *counter = 0;  // for the next kernel
        __threadfence();
    }
    __syncthreads();
    return last;
}

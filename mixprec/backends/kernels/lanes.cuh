// What neighbouring threads have, combined.

struct Sum {
    template <class T>
    __device__ __forceinline__ T operator()(T a, T b) const { return a + b; }
};

struct Largest {
    __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// Combines the values of `lanes` threads, a power of two up to a warp or a block, in an order that does not depend on
// anything else. All threads of the block come here, and those of the lanes get the result.
template <class T, class Combine>
__device__ __forceinline__ T combined(T value, int lanes, Combine combine) {
    for (int distance = min(lanes, WARP) / 2; distance; distance /= 2) {
        value = combine(value, __shfl_xor_sync(0xffffffffu, value, distance));
    }
    if (lanes <= WARP) return value;
    __shared__ T of_warps[THREADS / WARP];
    __syncthreads();  // former values may still be read
    if (threadIdx.x % WARP == 0) of_warps[threadIdx.x / WARP] = value;
    __syncthreads();
    value = of_warps[0];
#pragma unroll
    for (int warp = 1; warp < THREADS / WARP; ++warp) value = combine(value, of_warps[warp]);
    return value;
}

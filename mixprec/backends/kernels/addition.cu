// The sum of two arrays, in float32 and rounded once. The last elements, fewer than WIDTH, one by one.

template <int W>
__device__ __forceinline__ void add_at(u64 a, u64 b, u64 y, long long i) {
    float value[W], other[W];
    load(a, i, value);
    load(b, i, other);
#pragma unroll
    for (int k = 0; k < W; ++k) value[k] += other[k];
    store(y, i, value);
}

extern "C" __global__ void __launch_bounds__(THREADS) add(u64 a, u64 b, u64 y, long long size) {
    const long long i = (static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x) * WIDTH;
    if (i + WIDTH <= size) {
        add_at<WIDTH>(a, b, y, i);
    } else {
        for (long long k = i; k < size; ++k) add_at<1>(a, b, y, k);
    }
}

// The difference of two arrays; with words.cuh only. Each thread writes what it has found, nothing is shared: the host
// puts it together.

__device__ inline float element(const void* array, long long index, long long dtype) {
    if (dtype == FLOAT32) return ((const float*)array)[index];
    return widened(dtype, ((const u16*)array)[index]);
}

__device__ inline bool is_finite(float value) { return value - value == 0.0f; }

// found: for each thread the largest |a - b|, the largest |a|, and how often one is not finite and the other is.
extern "C" __global__ void difference(const void* a, const void* b, long long count, long long dtype, double limit,
                                      float* found) {
    const long long thread = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    const long long threads = gridDim.x * (long long)blockDim.x;
    float largest = 0.0f, scale = 0.0f, unlike = 0.0f;
    for (long long index = thread; index < count; index += threads) {
        const float one = element(a, index, dtype), other = element(b, index, dtype);
        if (is_finite(one) && is_finite(other)) {
            const float apart = one > other ? one - other : other - one, size = one < 0.0f ? -one : one;
            if (apart > largest) largest = apart;
            if (size > scale) scale = size;
        } else if (is_finite(one) || is_finite(other)) {
            const float finite = is_finite(one) ? one : other;
            if ((finite < 0.0f ? -finite : finite) < limit) unlike += 1.0f;
        }
    }
    found[3 * thread] = largest;
    found[3 * thread + 1] = scale;
    found[3 * thread + 2] = unlike;
}

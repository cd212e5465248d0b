// Dropout. Four neighbouring elements share a counter, so that nothing depends on how they are distributed over threads.

// key = state; the counter in the state moves on.
extern "C" __global__ void __launch_bounds__(THREADS) next_key(u64* state, u64* key) {
    if (threadIdx.x) return;
    key[0] = state[0];
    key[1] = state[1]++;
}

template <int W>
__device__ __forceinline__ void drop(
    u64 x, u64 y, long long i, u64 seed, u64 sequence, u32 threshold, float rest) {
    float value[W];
    load(x, i, value);
#pragma unroll
    for (int first = 0; first < W; first += 4) {
        const u64 counter = static_cast<u64>(i + first) / 4;
        u32 random[4] = {
            static_cast<u32>(counter), static_cast<u32>(counter >> 32), static_cast<u32>(sequence),
            static_cast<u32>(sequence >> 32)};
        philox(random, static_cast<u32>(seed), static_cast<u32>(seed >> 32));
        if constexpr (W == 1) {
            const int k = i % 4;
            random[0] = k == 0 ? random[0] : k == 1 ? random[1] : k == 2 ? random[2] : random[3];
        }
#pragma unroll
        for (int k = 0; k < 4 && k < W; ++k) {
            value[first + k] = random[k] < threshold ? 0.0f : value[first + k] / rest;
        }
    }
    store(y, i, value);
}

// Zero with a probability of threshold / 2**32; the others are divided by `rest`.
extern "C" __global__ void __launch_bounds__(THREADS) dropout(
    u64 x, u64 y, const u64* key, long long size, long long threshold, double rest) {
    const u64 seed = key[0], sequence = key[1];
    const long long i = (static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x) * WIDTH;
    if (i + WIDTH <= size) {
        drop<WIDTH>(x, y, i, seed, sequence, threshold, rest);
    } else {
        for (long long k = i; k < size; ++k) drop<1>(x, y, k, seed, sequence, threshold, rest);
    }
}

// What dropout makes of ones.
extern "C" __global__ void __launch_bounds__(THREADS) row_factors(
    float* factors, const u64* key, long long count, long long threshold, double rest) {
    const u64 seed = key[0], sequence = key[1];
    const long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= count) return;
    const u64 counter = static_cast<u64>(i) / 4;
    u32 random[4] = {
        static_cast<u32>(counter), static_cast<u32>(counter >> 32), static_cast<u32>(sequence),
        static_cast<u32>(sequence >> 32)};
    philox(random, static_cast<u32>(seed), static_cast<u32>(seed >> 32));
    const int k = i % 4;
    const u32 drawn = k == 0 ? random[0] : k == 1 ? random[1] : k == 2 ? random[2] : random[3];
    factors[i] = drawn < threshold ? 0.0f : 1.0f / static_cast<float>(rest);
}

// Each row times its factor; a row has a multiple of WIDTH elements.
extern "C" __global__ void __launch_bounds__(THREADS) scale_rows(
    u64 x, u64 y, const float* factors, long long size, long long row) {
    const long long i = (static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x) * WIDTH;
    if (i >= size) return;
    const float factor = factors[i / row];
    float value[WIDTH];
    load(x, i, value);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) value[k] *= factor;
    store(y, i, value);
}

// Dropout. Four neighbouring elements share a counter, so that nothing depends on how they are distributed over threads.

// key = state; the counter in the state moves on.
extern "C" __global__ void __launch_bounds__(THREADS) next_key(u64* state, u64* key) {
    if (threadIdx.x) return;
    key[0] = state[0];
    key[1] = state[1]++;
}

// Elements i to i + W, in place.
template <int W>
__device__ __forceinline__ void drop(
    float (&value)[W], long long i, u64 seed, u64 sequence, u32 threshold, float rest) {
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
}

// Those that are no whole vector.
__device__ __forceinline__ void drop_rest(
    u64 x, u64 y, long long i, long long size, u64 seed, u64 sequence, u32 threshold, float rest) {
    for (; i < size; ++i) {
        float value[1];
        load(x, i, value);
        drop(value, i, seed, sequence, threshold, rest);
        store(y, i, value);
    }
}

// Zero with a probability of threshold / 2**32; the others are divided by `rest`.
extern "C" __global__ void __launch_bounds__(THREADS) dropout(
    u64 x, u64 y, const u64* key, long long size, long long threshold, double rest) {
    const u64 seed = key[0], sequence = key[1];
    const long long i = (static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x) * WIDTH;
    if (i + WIDTH > size) return drop_rest(x, y, i, size, seed, sequence, threshold, rest);
    float value[WIDTH];
    load(x, i, value);
    drop(value, i, seed, sequence, threshold, rest);
    store(y, i, value);
}

// The same with a key that is the state, and next_key: the counter moves on when all blocks have read it. One counter.
extern "C" __global__ void __launch_bounds__(THREADS) dropout_next(
    u64 x, u64 y, u64* key, u64* state, u32* counters, long long size, long long threshold, double rest) {
    const u64 seed = state[0], sequence = state[1];
    const long long i = (static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x) * WIDTH;
    const bool is_whole = i + WIDTH <= size;
    float value[WIDTH];
    if (is_whole) load(x, i, value);  // before the barrier, to wait for both at once
    __syncthreads();
    if (threadIdx.x == 0) {  // not is_last_block: the others need not wait for the answer
        __threadfence();
        if (atomicAdd(counters, 1u) == gridDim.x - 1) {
            __threadfence();
            *counters = 0;  // for the next kernel
            key[0] = seed;
            key[1] = sequence;
            state[1] = sequence + 1;
        }
    }
    if (!is_whole) return drop_rest(x, y, i, size, seed, sequence, threshold, rest);
    drop(value, i, seed, sequence, threshold, rest);
    store(y, i, value);
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

// Rows of a table by labels, the gradient of that, and arrays one after the other in one.
//
// LABEL_WORDS: words of 32 bits that a label has.

#ifndef LABEL_WORDS
#define LABEL_WORDS 1
#endif

// The row of the table for label number i, or -1 if it is ignored. Beyond the table labels wrap around.
__device__ __forceinline__ long long row_of(
    u64 labels, long long i, long long rows, long long has_ignored, long long ignored) {
    u32 words[LABEL_WORDS];
    load_words<LABEL_WORDS>(labels + i * LABEL_WORDS * 4, words);
    long long label = static_cast<int>(words[LABEL_WORDS - 1]);
    if constexpr (LABEL_WORDS == 2) label = static_cast<long long>(static_cast<u64>(label) << 32 | words[0]);
    if (has_ignored && label == ignored) return -1;
    if (label >= 0 && label < rows) return label;
    label %= rows;
    return label < 0 ? label + rows : label;
}

extern "C" __global__ void __launch_bounds__(THREADS) embed(
    u64 table, u64 labels, u64 y, long long size, long long columns, long long rows, long long has_ignored,
    long long ignored) {
    const long long i = (static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x) * WIDTH;
    if (i >= size) return;
    const long long row = row_of(labels, i / columns, rows, has_ignored, ignored);
    float value[WIDTH] = {};
    if (row >= 0) load(table, row * columns + i % columns, value);
    store(y, i, value);
}

// A block for each label, into a table of zeros. The first one with a label adds up the rows of all labels like it, in
// their order; the others leave. So nothing is sorted, and no two blocks write to one row. Each block compares its label
// with all others, THREADS at once: for 5,000 labels in 20 steps. It reads rows one after the other, so a label that
// stands for most of them takes long.
extern "C" __global__ void __launch_bounds__(THREADS) embed_backward(
    u64 dy, u64 labels, u64 table, long long count, long long columns, long long rows, long long has_ignored,
    long long ignored) {
    const long long own = blockIdx.x, row = row_of(labels, own, rows, has_ignored, ignored);
    if (row < 0) return;
    const auto is_alike = [&](long long i) { return row_of(labels, i, rows, has_ignored, ignored) == row; };
    for (long long start = 0; start < own; start += THREADS) {
        const long long i = start + threadIdx.x;
        if (__syncthreads_or(i < own && is_alike(i))) return;
    }
    __shared__ u32 alike[THREADS / WARP];  // a bit for each label
    for (long long first = 0; first < columns; first += THREADS * WIDTH) {
        const long long column = first + threadIdx.x * WIDTH;
        float sum[WIDTH] = {};
        for (long long start = own / THREADS * THREADS; start < count; start += THREADS) {
            const long long i = start + threadIdx.x;
            const bool is_term = i >= own && i < count && is_alike(i);
            if (!__syncthreads_or(is_term)) continue;
            const u32 of_warp = combined(static_cast<u32>(is_term) << threadIdx.x % WARP, WARP, Sum());
            if (threadIdx.x % WARP == 0) alike[threadIdx.x / WARP] = of_warp;
            __syncthreads();
            if (column >= columns) continue;
            for (int warp = 0; warp < THREADS / WARP; ++warp) {
                long long term = start + warp * WARP;
                for (u32 left = alike[warp]; left; left >>= 1, ++term) {
                    if (!(left & 1)) continue;
                    float value[WIDTH];
                    load(dy, term * columns + column, value);
#pragma unroll
                    for (int k = 0; k < WIDTH; ++k) sum[k] += value[k];
                }
            }
        }
        if (column < columns) store(table, row * columns + column, sum);
    }
}

// Bytes of many arrays, in units of WIDTH elements.
//
// The table of arrays is an argument by value, as a CUDA graph uploads nothing.

struct Part {
    u64 address;
    long long first;  // its first unit in the target
};

struct Parts {
    Part of[240];  // arguments have 4,096 bytes
};

extern "C" __global__ void __launch_bounds__(THREADS) concat_rows(
    const Parts parts, long long count, u64 target, long long size) {
    const long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= size) return;
    int part = 0;
    for (int step = 128; step; step /= 2) {
        if (part + step < count && parts.of[part + step].first <= i) part += step;
    }
    constexpr int BYTES = WIDTH * SIZE<STORAGE>, N = BYTES / 4;
    u32 words[N ? N : 1];
    load_words<N>(parts.of[part].address + (i - parts.of[part].first) * BYTES, words);
    store_words<N>(target + i * BYTES, words);
}

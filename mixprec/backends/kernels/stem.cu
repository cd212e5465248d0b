// Images of few channels with pairs of columns, or squares of two by two pixels, as channels: what a convolution with a
// stride of 2 computes on them by Tensor cores. FOLDED elements are those of one row of two pixels, with zeros up to
// four channels each.

constexpr int FOLDED = 8;

// Rows of two pixels of C channels, `rows` below each other: 1 or 2. All that is read is under way at once. With a
// WIDTH above 1 pieces of memory are read whole, which so begin at multiples of their length.
template <int C>
__device__ __forceinline__ void fold(u64 x, u64 y, long long from, long long to, long long to_below, int rows) {
    constexpr int COUNT = 2 * C, PIECE = WIDTH == 1 ? 1 : COUNT % 4 ? 2 : COUNT;
    float pixels[2][COUNT];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int i = 0; i < COUNT; i += PIECE) {
            float piece[PIECE] = {};
            if (r < rows) load(x, from + r * to_below + i, piece);
#pragma unroll
            for (int k = 0; k < PIECE; ++k) pixels[r][i + k] = piece[k];
        }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float folded[FOLDED] = {};
#pragma unroll
        for (int i = 0; i < COUNT; ++i) folded[i / C * (FOLDED / 2) + i % C] = pixels[r][i];
        if (r < rows) store(y, to + r * FOLDED, folded);
    }
}

// (count, channels) places of two pixels, in rows of `columns` places. A thread has one of the result.
extern "C" __global__ void __launch_bounds__(THREADS) fold_images(
    u64 x, u64 y, long long count, long long columns, long long channels, long long rows) {
    const u32 i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const u32 row = i / static_cast<u32>(columns);
    const long long width = columns * 2 * channels, to = i * rows * FOLDED;
    const long long from = row * rows * width + (i - row * columns) * 2 * channels;
    switch (channels) {
        case 1: return fold<1>(x, y, from, to, width, rows);
        case 2: return fold<2>(x, y, from, to, width, rows);
        case 3: return fold<3>(x, y, from, to, width, rows);
        default: return fold<4>(x, y, from, to, width, rows);
    }
}

// An axis of a filter: `size` elements, the first of which is the element `before` of the first `fold` folded ones.
struct Axis {
    int size, fold, before, folded;

    __device__ __forceinline__ Axis(int size_, int fold_, int before_)
        : size(size_), fold(fold_), before(before_), folded((size_ + before_ + fold_ - 1) / fold_) {}
};

#define FILTERS                                                                                                       \
    long long count, long long rows, long long columns, long long channels, long long folded_rows,                    \
        long long rows_before, long long columns_before

// (K, R, S, C) -> (K, R', S', folded rows * FOLDED), zeros where there was nothing. A thread has an element of the result.
extern "C" __global__ void __launch_bounds__(THREADS) fold_filters(u64 w, u64 folded, FILTERS) {
    const long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= count) return;
    const Axis down(rows, folded_rows, rows_before), across(columns, 2, columns_before);
    const int width = down.fold * FOLDED, channel = i % (FOLDED / 2), place = i % width / (FOLDED / 2);
    const long long above = i / width, filter = above / (down.folded * across.folded);
    const int r = above / across.folded % down.folded * down.fold + place / 2 - down.before;
    const int s = above % across.folded * 2 + place % 2 - across.before;
    float value[1] = {0.0f};
    if (0 <= r && r < rows && 0 <= s && s < columns && channel < channels) {
        load(w, ((filter * rows + r) * columns + s) * channels + channel, value);
    }
    store(folded, i, value);
}

// Back, without what was zero. A thread has an element of the result.
extern "C" __global__ void __launch_bounds__(THREADS) unfold_filters(u64 folded, u64 w, FILTERS) {
    const long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= count) return;
    const Axis down(rows, folded_rows, rows_before), across(columns, 2, columns_before);
    const int channel = i % channels;
    const long long above = i / channels, filter = above / (rows * columns);
    const int r = above / columns % rows + down.before, s = above % columns + across.before;
    const int place = r % down.fold * 2 + s % 2;
    const long long at = (filter * down.folded + r / down.fold) * across.folded + s / 2;
    float value[1];
    load(folded, at * down.fold * FOLDED + place * (FOLDED / 2) + channel, value);
    store(w, i, value);
}

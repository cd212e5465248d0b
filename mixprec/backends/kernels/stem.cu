// Images of few channels with squares of two by two pixels as channels: what a convolution with a stride of 2 computes
// on them by Tensor cores. FOLDED elements are one row of two pixels, with zeros up to four channels each.

constexpr int FOLDED = 8;

// Two rows of two pixels of C channels, which lie `apart` from each other, or side by side if that is 0. All that is
// read is under way at once. With a WIDTH above 1 pieces of memory are read whole, which so begin at multiples of their
// length.
template <int C>
__device__ __forceinline__ void fold(u64 x, u64 y, long long from, long long below, long long apart, long long to) {
    constexpr int COUNT = 2 * C, PIECE = WIDTH == 1 ? 1 : COUNT % 4 ? 2 : COUNT, PAIR = WIDTH == 1 ? 1 : 2;
    float pixels[2][COUNT];
    if (apart) {
#pragma unroll
        for (int i = 0; i < 2 * COUNT; i += PAIR) {
            const int r = i / COUNT, c = i % COUNT / 2, s = i % 2;
            float piece[PAIR];
            load(x, from + r * below + c * apart + s, piece);
#pragma unroll
            for (int k = 0; k < PAIR; ++k) pixels[r][(s + k) * C + c] = piece[k];
        }
    } else {
#pragma unroll
        for (int i = 0; i < 2 * COUNT; i += PIECE) {
            float piece[PIECE];
            load(x, from + i / COUNT * below + i % COUNT, piece);
#pragma unroll
            for (int k = 0; k < PIECE; ++k) pixels[i / COUNT][i % COUNT + k] = piece[k];
        }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float folded[FOLDED] = {};
#pragma unroll
        for (int i = 0; i < COUNT; ++i) folded[i / C * (FOLDED / 2) + i % C] = pixels[r][i];
        store<OTHER>(y, to + r * FOLDED, folded);
    }
}

// (images, rows, columns) squares, `count` in all, which a thread each has: the image's, (height, width), begin
// after some of zeros. Channels of an image are `apart`, as Chainer has them, or each pixel's lie side by side.
extern "C" __global__ void __launch_bounds__(THREADS) fold_images(
    u64 x, u64 y, long long count, long long rows, long long columns, long long rows_before, long long columns_before,
    long long height, long long width, long long channels, long long apart) {
    const u32 i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const u32 strip = i / static_cast<u32>(columns), image = strip / static_cast<u32>(rows);
    const int column = int(i - strip * static_cast<u32>(columns)) - int(columns_before);
    const int row = int(strip - image * static_cast<u32>(rows)) - int(rows_before);
    const long long to = i * 2ll * FOLDED;
    if (row < 0 || row >= height || column < 0 || column >= width) {
        const float zeros[FOLDED] = {};
        store<OTHER>(y, to, zeros);
        store<OTHER>(y, to + FOLDED, zeros);
        return;
    }
    const long long pixel = apart ? 1 : channels, below = 2 * width * pixel, plane = apart ? 4 * height * width : 0;
    const long long from = image * channels * 4 * height * width + row * 2 * below + column * 2 * pixel;
    switch (channels) {
        case 1: return fold<1>(x, y, from, below, plane, to);
        case 2: return fold<2>(x, y, from, below, plane, to);
        case 3: return fold<3>(x, y, from, below, plane, to);
        default: return fold<4>(x, y, from, below, plane, to);
    }
}

// Back to (N, height, width, channels), of pixels, without what was zero. A thread has an element of the result.
extern "C" __global__ void __launch_bounds__(THREADS) unfold_images(
    u64 y, u64 x, long long count, long long rows, long long columns, long long rows_before, long long columns_before,
    long long height, long long width, long long channels) {
    const long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= count) return;
    const long long pixel = i / channels, image = pixel / width / height, row = pixel / width % height;
    const long long column = pixel % width, across = columns_before + column / 2, down = rows_before + row / 2;
    const long long place = ((image * rows + down) * columns + across) * 4 + row % 2 * 2 + column % 2;
    float value[1];
    load(y, place * (FOLDED / 2) + i % channels, value);
    store<OTHER>(x, i, value);
}

// An axis of a filter: `size` elements, the first of which is the element `before` of the first two.
struct Axis {
    int size, before, folded;

    __device__ __forceinline__ Axis(int size_, int before_)
        : size(size_), before(before_), folded((size_ + before_ + 1) / 2) {}
};

#define FILTERS                                                                                   \
    long long count, long long rows, long long columns, long long channels, long long rows_before, \
        long long columns_before

// (K, R, S, C) -> (K, R', S', 2 * FOLDED), zeros where there was nothing. A thread has an element of the result.
extern "C" __global__ void __launch_bounds__(THREADS) fold_filters(u64 w, u64 folded, FILTERS) {
    const long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= count) return;
    const Axis down(rows, rows_before), across(columns, columns_before);
    const int channel = i % (FOLDED / 2), place = i % (2 * FOLDED) / (FOLDED / 2);
    const long long above = i / (2 * FOLDED), filter = above / (down.folded * across.folded);
    const int r = above / across.folded % down.folded * 2 + place / 2 - down.before;
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
    const Axis down(rows, rows_before), across(columns, columns_before);
    const int channel = i % channels;
    const long long above = i / channels, filter = above / (rows * columns);
    const int r = above / columns % rows + down.before, s = above % columns + across.before;
    const int place = r % 2 * 2 + s % 2;
    const long long at = (filter * down.folded + r / 2) * across.folded + s / 2;
    float value[1];
    load(folded, at * 2 * FOLDED + place * (FOLDED / 2) + channel, value);
    store(w, i, value);
}

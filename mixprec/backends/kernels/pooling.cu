// Pooling of NHWC images. A thread has WIDTH channels of one place of the result: of an output, or, backward, of an input,
// for which it looks up the windows that it was in. So each element is written once, and its sum has one order: that of
// the positions in the window.
//
// Blocks are numbered image by image: within an image 32 bits are enough, and their division is cheap. Loops over windows
// of any size are not unrolled, which would cost registers: many threads hide the time that memory takes, too. Windows of
// 3x3 have kernels of their own, in which all that a thread reads is under way at once.

#define WINDOWS                                                                                                       \
    long long blocks_of_image, long long channels, long long height, long long width, long long out_height,           \
        long long out_width, long long rows, long long columns, long long stride_y, long long stride_x,               \
        long long pad_y, long long pad_x

#define WINDOWS_GIVEN                                                                                                 \
    {int(blocks_of_image), int(channels), int(height), int(width), int(out_height), int(out_width), int(rows),        \
     int(columns), int(stride_y), int(stride_x), int(pad_y), int(pad_x)}

struct Windows {
    int blocks_of_image, channels, height, width, out_height, out_width;
    int rows, columns, stride_y, stride_x, pad_y, pad_x;  // of a window
};

// A place in an array of images, and the first of WIDTH channels there.
struct Place {
    u32 image;
    int y, x, channel;
    bool exists;

    __device__ __forceinline__ Place(const Windows& w, int height, int width) {
        image = blockIdx.x / w.blocks_of_image;
        const u32 i = (blockIdx.x - image * w.blocks_of_image) * THREADS + threadIdx.x;
        const u32 vectors = w.channels / WIDTH;
        const u32 pixel = i / vectors;
        channel = (i - pixel * vectors) * WIDTH;
        y = pixel / width;
        x = pixel - y * width;
        exists = y < height;
    }

    // The index of an element of the same image and channel.
    __device__ __forceinline__ long long at(const Windows& w, int height, int width, int y, int x) const {
        return ((static_cast<long long>(image) * height + y) * width + x) * w.channels + channel;
    }
};

// The places that meet a given one: in the window of an output, or the outputs whose windows an input is in.
struct Range {
    int begin, end;

    __device__ __forceinline__ bool has(int place) const { return begin <= place && place < end; }
};

__device__ __forceinline__ Range inside(int first, int count, int size) {
    return {max(0, -first), min(count, size - first)};
}

__device__ __forceinline__ Range reached(int place, int count, int stride, int outputs) {
    const int last = place / stride, beyond = place - count + 1;  // the first output is beyond / stride, rounded up
    return {beyond > 0 ? (beyond + stride - 1) / stride : 0, min(last + 1, outputs)};
}

__device__ __forceinline__ void divide(float (&sum)[WIDTH], float divisor) {
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) sum[k] /= divisor;
}

// The largest values of a window so far, and where they were. The first NaN stays: it is larger than everything.
struct Maxima {
    float largest[WIDTH];
    u32 found[WIDTH];

    __device__ __forceinline__ explicit Maxima(u32 first) {
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
            largest[k] = __uint_as_float(0xff800000);  // -inf
            found[k] = first;
        }
    }

    template <class Values>
    __device__ __forceinline__ void meet(const Values& values, u32 position) {
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
            const float value = values[k];
            const bool larger = !(value <= largest[k]) && largest[k] == largest[k];
            largest[k] = larger ? value : largest[k];
            found[k] = larger ? position : found[k];
        }
    }
};

// The window of an output: its first row and column, and what of it is inside of the image.
struct Window {
    int top, left;
    Range of_rows, of_columns;
    u32 first;  // position that is inside, 0 if there is none

    __device__ __forceinline__ Window(const Windows& w, const Place& place)
        : top(place.y * w.stride_y - w.pad_y), left(place.x * w.stride_x - w.pad_x),
          of_rows(inside(top, w.rows, w.height)), of_columns(inside(left, w.columns, w.width)) {
        const bool any = of_rows.begin < of_rows.end && of_columns.begin < of_columns.end;
        first = any ? of_rows.begin * w.columns + of_columns.begin : 0;
    }
};

__device__ __forceinline__ void write(const Windows& w, const Place& place, u64 y, u64 where, const Maxima& maxima) {
    const long long at = place.at(w, w.out_height, w.out_width, place.y, place.x);
    store(y, at, maxima.largest);
    store_bytes(where, at, maxima.found);
}

extern "C" __global__ void __launch_bounds__(THREADS, 4) max_pool(u64 x, u64 y, u64 where, WINDOWS) {
    const Windows w = WINDOWS_GIVEN;
    const Place place(w, w.out_height, w.out_width);
    if (!place.exists) return;
    const Window window(w, place);
    Maxima maxima(window.first);
    for (int r = window.of_rows.begin; r < window.of_rows.end; ++r) {
#pragma unroll 1
        for (int s = window.of_columns.begin; s < window.of_columns.end; ++s) {
            float value[WIDTH];
            load(x, place.at(w, w.height, w.width, window.top + r, window.left + s), value);
            maxima.meet(value, r * w.columns + s);
        }
    }
    write(w, place, y, where, maxima);
}

// The same for windows of 3x3.
extern "C" __global__ void __launch_bounds__(THREADS) max_pool_3x3(u64 x, u64 y, u64 where, WINDOWS) {
    const Windows w = WINDOWS_GIVEN;
    const Place place(w, w.out_height, w.out_width);
    if (!place.exists) return;
    const Window window(w, place);
    Elements read[9] = {};
    bool is_inside[9];
    const long long corner = place.at(w, w.height, w.width, window.top, window.left);
#pragma unroll
    for (int i = 0; i < 9; ++i) {
        is_inside[i] = window.of_rows.has(i / 3) && window.of_columns.has(i % 3);
        if (is_inside[i]) read[i].load(x, corner + (static_cast<long long>(i / 3) * w.width + i % 3) * w.channels);
    }
    Maxima maxima(window.first);
#pragma unroll
    for (int i = 0; i < 9; ++i) {
        if (is_inside[i]) maxima.meet(read[i], i);
    }
    write(w, place, y, where, maxima);
}

extern "C" __global__ void __launch_bounds__(THREADS) average_pool(u64 x, u64 y, WINDOWS) {
    const Windows w = WINDOWS_GIVEN;
    const Place place(w, w.out_height, w.out_width);
    if (!place.exists) return;
    const int top = place.y * w.stride_y - w.pad_y, left = place.x * w.stride_x - w.pad_x;
    const Range of_rows = inside(top, w.rows, w.height), of_columns = inside(left, w.columns, w.width);
    float sum[WIDTH] = {};
    for (int r = of_rows.begin; r < of_rows.end; ++r) {
#pragma unroll 1
        for (int s = of_columns.begin; s < of_columns.end; ++s) {
            float value[WIDTH];
            load(x, place.at(w, w.height, w.width, top + r, left + s), value);
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) sum[k] += value[k];
        }
    }
    divide(sum, w.rows * w.columns);
    store(y, place.at(w, w.out_height, w.out_width, place.y, place.x), sum);
}

// Adds up term(index of the output, position in the window, values) over the windows of an input, and divides the sum.
template <class Term>
__device__ __forceinline__ void sum_of_windows(const Windows& w, u64 dx, float divisor, Term term) {
    const Place place(w, w.height, w.width);
    if (!place.exists) return;
    const Range of_rows = reached(place.y + w.pad_y, w.rows, w.stride_y, w.out_height);
    const Range of_columns = reached(place.x + w.pad_x, w.columns, w.stride_x, w.out_width);
    float sum[WIDTH] = {};
    for (int oy = of_rows.end - 1; oy >= of_rows.begin; --oy) {  // the later the window, the earlier the position in it
#pragma unroll 1
        for (int ox = of_columns.end - 1; ox >= of_columns.begin; --ox) {
            const int r = place.y + w.pad_y - oy * w.stride_y, s = place.x + w.pad_x - ox * w.stride_x;
            float value[WIDTH];
            term(place.at(w, w.out_height, w.out_width, oy, ox), r * w.columns + s, value);
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) sum[k] += value[k];
        }
    }
    divide(sum, divisor);
    store(dx, place.at(w, w.height, w.width, place.y, place.x), sum);
}

extern "C" __global__ void __launch_bounds__(THREADS) max_pool_backward(u64 dy, u64 where, u64 dx, WINDOWS) {
    sum_of_windows(WINDOWS_GIVEN, dx, 1, [&](long long at, u32 position, float (&value)[WIDTH]) {
        u32 found[WIDTH];
        load(dy, at, value);
        load_bytes(where, at, found);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) value[k] = found[k] == position ? value[k] : 0.0f;
    });
}

// For windows of 3x3 with a stride of 2: a thread has a square of 2x2 inputs, which are in the same windows - the first
// of its rows in two, the second one in the later of these - and so for columns. `squares_y` are down, from the first on
// that is not all padding.
extern "C" __global__ void __launch_bounds__(THREADS) max_pool_backward_3x3_2(
    u64 dy, u64 where, u64 dx, WINDOWS, long long squares_y, long long squares_x) {
    const Windows w = WINDOWS_GIVEN;
    const Place place(w, squares_y, squares_x);
    if (!place.exists) return;
    const int last_y = place.y + w.pad_y / 2, last_x = place.x + w.pad_x / 2;  // of the windows
    Elements gradient[2][2] = {};
    BytesOf<WIDTH> found[2][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int oy = last_y - i / 2, ox = last_x - i % 2;
        if (0 <= oy && oy < w.out_height && 0 <= ox && ox < w.out_width) {
            const long long at = place.at(w, w.out_height, w.out_width, oy, ox);
            gradient[i / 2][i % 2].load(dy, at);
            found[i / 2][i % 2].load(where, at);
        } else {
            for (u32& word : found[i / 2][i % 2].words) word = 0xffffffff;  // no position in a window
        }
    }
#pragma unroll
    for (int input = 0; input < 4; ++input) {
        const int a = input / 2, b = input % 2, y = last_y * 2 + a - w.pad_y, x = last_x * 2 + b - w.pad_x;
        if (y < 0 || y >= w.height || x < 0 || x >= w.width) continue;
        float sum[WIDTH] = {};
#pragma unroll
        for (int i = 0; i < 2 - a; ++i) {  // the later the window, the earlier the position in it
#pragma unroll
            for (int j = 0; j < 2 - b; ++j) {
                const u32 position = (a + 2 * i) * 3 + b + 2 * j;
#pragma unroll
                for (int k = 0; k < WIDTH; ++k) sum[k] += found[i][j][k] == position ? gradient[i][j][k] : 0.0f;
            }
        }
        store(dx, place.at(w, w.height, w.width, y, x), sum);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) average_pool_backward(u64 dy, u64 dx, WINDOWS) {
    sum_of_windows(WINDOWS_GIVEN, dx, rows * columns, [&](long long at, u32, float (&value)[WIDTH]) {
        load(dy, at, value);
    });
}

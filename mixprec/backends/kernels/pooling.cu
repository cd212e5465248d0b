// Pooling of NHWC images. A thread has WIDTH channels of one place of the result: of an output, or, backward, of an input,
// for which it looks up the windows that it was in. So each element is written once, and its sum has one order: that of
// the positions in the window.
//
// Blocks are numbered image by image: within an image 32 bits are enough, and their division is cheap. Loops over windows
// are not unrolled, which would cost registers: many threads hide the time that memory takes, too.

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

extern "C" __global__ void __launch_bounds__(THREADS) max_pool(u64 x, u64 y, u64 where, WINDOWS) {
    const Windows w = WINDOWS_GIVEN;
    const Place place(w, w.out_height, w.out_width);
    if (!place.exists) return;
    const int top = place.y * w.stride_y - w.pad_y, left = place.x * w.stride_x - w.pad_x;
    const Range of_rows = inside(top, w.rows, w.height), of_columns = inside(left, w.columns, w.width);
    const bool any = of_rows.begin < of_rows.end && of_columns.begin < of_columns.end;
    float largest[WIDTH];
    u32 found[WIDTH];
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) {
        largest[k] = __uint_as_float(0xff800000);  // -inf
        found[k] = any ? of_rows.begin * w.columns + of_columns.begin : 0;
    }
    for (int r = of_rows.begin; r < of_rows.end; ++r) {
#pragma unroll 1
        for (int s = of_columns.begin; s < of_columns.end; ++s) {
            float value[WIDTH];
            load(x, place.at(w, w.height, w.width, top + r, left + s), value);
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) {
                // The first NaN stays: nothing is larger, and then it does not equal itself.
                const bool larger = value[k] > largest[k] || (value[k] != value[k] && largest[k] == largest[k]);
                largest[k] = larger ? value[k] : largest[k];
                found[k] = larger ? r * w.columns + s : found[k];
            }
        }
    }
    const long long at = place.at(w, w.out_height, w.out_width, place.y, place.x);
    store(y, at, largest);
    store_bytes(where, at, found);
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

extern "C" __global__ void __launch_bounds__(THREADS) average_pool_backward(u64 dy, u64 dx, WINDOWS) {
    sum_of_windows(WINDOWS_GIVEN, dx, rows * columns, [&](long long at, u32, float (&value)[WIDTH]) {
        load(dy, at, value);
    });
}

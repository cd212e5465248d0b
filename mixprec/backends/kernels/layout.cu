// From STORAGE to OTHER, and from the layout of Chainer to that of the device and back.

// Element by element; the last ones, fewer than WIDTH, one by one.
extern "C" __global__ void __launch_bounds__(THREADS) cast(u64 x, u64 y, long long size) {
    const long long i = (static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x) * WIDTH;
    if (i + WIDTH <= size) {
        float value[WIDTH];
        load(x, i, value);
        store<OTHER>(y, i, value);
    } else {
        for (long long k = i; k < size; ++k) {
            float value[1];
            load(x, k, value);
            store<OTHER>(y, k, value);
        }
    }
}

// Images (channels, pixels) <-> (pixels, own channels), few channels: a thread has a pixel. Channels that x has not are
// zeros, those that y has not are left out.

struct Pixel {
    u32 image;
    long long number;

    __device__ __forceinline__ Pixel(long long blocks_of_image) {
        image = blockIdx.x / static_cast<u32>(blocks_of_image);
        number = (blockIdx.x - image * blocks_of_image) * THREADS + threadIdx.x;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS) interleave(
    u64 x, u64 y, long long blocks_of_image, long long pixels, long long x_channels, long long y_channels) {
    const Pixel pixel(blocks_of_image);
    if (pixel.number >= pixels) return;
    const long long from = pixel.image * x_channels * pixels + pixel.number;
    const long long to = (pixel.image * pixels + pixel.number) * y_channels;
    for (int c = 0; c < y_channels; c += WIDTH) {
        float value[WIDTH] = {};
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
            float one[1] = {0};
            if (c + k < x_channels) load(x, from + (c + k) * pixels, one);
            value[k] = one[0];
        }
        store<OTHER>(y, to + c, value);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) separate(
    u64 x, u64 y, long long blocks_of_image, long long pixels, long long x_channels, long long y_channels) {
    const Pixel pixel(blocks_of_image);
    if (pixel.number >= pixels) return;
    const long long from = (pixel.image * pixels + pixel.number) * x_channels;
    const long long to = pixel.image * y_channels * pixels + pixel.number;
    for (int c = 0; c < y_channels; ++c) {
        float one[1];
        load(x, from + c, one);
        store<OTHER>(y, to + c * pixels, one);
    }
}

// The same for many channels. Images of x (rows, x_columns) become (columns, y_rows): the first columns only, if that is
// less, and zeros after the rows, if that is more. A block has a square in shared memory.
constexpr int SQUARE = 64;

extern "C" __global__ void __launch_bounds__(THREADS) transpose(
    u64 x, u64 y, long long squares_down, long long squares_across, long long rows, long long x_columns,
    long long columns, long long y_rows, long long reads_vectors, long long writes_vectors) {
    __shared__ float square[SQUARE][SQUARE + 1];  // one more, so that a column is in many banks
    const u32 strip = blockIdx.x / static_cast<u32>(squares_across);
    const long long first_column = (blockIdx.x - strip * squares_across) * SQUARE;
    const long long image = strip / static_cast<u32>(squares_down);
    const long long first_row = (strip - image * squares_down) * SQUARE;
    for (int i = threadIdx.x * WIDTH; i < SQUARE * SQUARE; i += THREADS * WIDTH) {
        const int r = i / SQUARE, c = i % SQUARE;
        const long long row = first_row + r, column = first_column + c, at = (image * rows + row) * x_columns + column;
        float value[WIDTH] = {};
        if (row < rows && reads_vectors) {
            if (column < x_columns) load(x, at, value);
        } else if (row < rows) {
            for (int k = 0; k < WIDTH && column + k < columns; ++k) {
                float one[1];
                load(x, at + k, one);
                square[r][c + k] = one[0];
            }
            continue;
        }
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) square[r][c + k] = value[k];
    }
    __syncthreads();
    for (int i = threadIdx.x * WIDTH; i < SQUARE * SQUARE; i += THREADS * WIDTH) {
        const int c = i / SQUARE, r = i % SQUARE;
        const long long row = first_row + r, column = first_column + c, at = (image * columns + column) * y_rows + row;
        if (column >= columns) break;
        if (writes_vectors) {
            float value[WIDTH];
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) value[k] = square[r + k][c];
            if (row < y_rows) store<OTHER>(y, at, value);
        } else {
            for (int k = 0; k < WIDTH && row + k < y_rows; ++k) {
                const float one[1] = {square[r + k][c]};
                store<OTHER>(y, at + k, one);
            }
        }
    }
}

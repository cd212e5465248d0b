// Arrays of rows, as wide as a tensor has channels: the sum of each column, and one row combined with all others.
//
// A block has `lanes` vectors of WIDTH neighbouring columns, a power of two, and THREADS / lanes rows at a time. `tiles`
// blocks lie beside each other, until all `vectors` of a row are there.

// Which columns a thread has, and every how many rows.
struct Lane {
    u32 number, part;  // of the block among those with the same columns
    int step, row;     // rows of a block at a time, and which of them the thread has
    int vector;
    bool exists;

    __device__ __forceinline__ Lane(int vectors, int lanes, int tiles) {
        part = blockIdx.x / tiles;
        number = threadIdx.x % lanes;
        step = THREADS / lanes;
        row = threadIdx.x / lanes;
        vector = (blockIdx.x - part * tiles) * lanes + number;
        exists = vector < vectors;
    }
};

constexpr int ROWS = 4;  // that a thread reads at once
constexpr int AT_ONCE = 5;  // blocks; without a number the compiler saves registers, and reads one row after the other

// Adds up what the thread has of rows `first` to `end`.
__device__ __forceinline__ void add_rows(
    u64 x, long long vectors, const Lane& lane, long long first, long long end, float (&sum)[WIDTH]) {
    if (!lane.exists) return;
    long long row = first + lane.row;
    for (; row + (ROWS - 1) * lane.step < end; row += ROWS * lane.step) {
        Elements read[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) read[r].load(x, ((row + r * lane.step) * vectors + lane.vector) * WIDTH);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) sum[k] += read[r][k];
        }
    }
#pragma unroll 1
    for (; row < end; row += lane.step) {
        float value[WIDTH];
        load(x, (row * vectors + lane.vector) * WIDTH, value);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) sum[k] += value[k];
    }
}

// Adds up what the threads of a block have of the same columns. The first ones get the sums, and `true`.
__device__ __forceinline__ bool add_up(int lanes, const Lane& lane, float (&sum)[WIDTH]) {
    __shared__ float all[WIDTH][THREADS];
    __syncthreads();  // former sums may still be read
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) all[k][threadIdx.x] = sum[k];
    for (int half = THREADS / 2; half >= lanes; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) all[k][threadIdx.x] += all[k][threadIdx.x + half];
        }
    }
    if (threadIdx.x >= lanes || !lane.exists) return false;
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) sum[k] = all[k][threadIdx.x];
    return true;
}

// (rows, columns) -> (segments, columns) in OTHER: the sum of every `rows_of_segment` rows, divided.
extern "C" __global__ void __launch_bounds__(THREADS, AT_ONCE) sum_columns(
    u64 x, u64 sums, long long rows, long long vectors, long long lanes, long long tiles, long long rows_of_segment,
    double divisor) {
    const Lane lane(vectors, lanes, tiles);
    const long long first = lane.part * rows_of_segment;
    float sum[WIDTH] = {};
    add_rows(x, vectors, lane, first, min(first + rows_of_segment, rows), sum);
    if (!add_up(lanes, lane, sum)) return;
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) sum[k] /= static_cast<float>(divisor);
    store<OTHER>(sums, (lane.part * vectors + lane.vector) * WIDTH, sum);
}

// (rows, columns) -> (columns,) in OTHER: each block adds up one of `parts` parts of the rows, and the last one of its
// columns their sums, `partial` (parts, columns). A counter for each tile.
extern "C" __global__ void __launch_bounds__(THREADS, AT_ONCE) sum_rows(
    u64 x, u64 sums, float* partial, u32* counters, long long rows, long long vectors, long long lanes, long long tiles,
    long long rows_of_part, long long parts) {
    const Lane lane(vectors, lanes, tiles);
    const long long first = lane.part * rows_of_part, columns = vectors * WIDTH;
    float sum[WIDTH] = {};
    add_rows(x, vectors, lane, first, min(first + rows_of_part, rows), sum);
    const bool has_sums = add_up(lanes, lane, sum);
    if (parts > 1) {
        if (has_sums) {
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) partial[lane.part * columns + lane.vector * WIDTH + k] = sum[k];
        }
        if (!is_last_block(counters + blockIdx.x % tiles, parts)) return;
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) sum[k] = 0;
        const volatile float* of_others = partial + lane.vector * WIDTH;
        for (long long part = lane.row; part < parts && lane.exists; part += lane.step) {
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) sum[k] += of_others[part * columns + k];
        }
        add_up(lanes, lane, sum);
    }
    if (has_sums) store<OTHER>(sums, lane.vector * WIDTH, sum);
}

// y = x + b, b a row in OTHER.
extern "C" __global__ void __launch_bounds__(THREADS) add_row(
    u64 x, u64 b, u64 y, long long rows, long long vectors, long long lanes, long long tiles, long long rows_of_block) {
    const Lane lane(vectors, lanes, tiles);
    if (!lane.exists) return;
    const long long first = lane.part * rows_of_block, end = min(first + rows_of_block, rows);
    float bias[WIDTH];
    load<OTHER>(b, lane.vector * WIDTH, bias);
    for (long long row = first + lane.row; row < end; row += lane.step) {
        const long long at = (row * vectors + lane.vector) * WIDTH;
        float value[WIDTH];
        load(x, at, value);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) value[k] += bias[k];
        store(y, at, value);
    }
}

// Each row of x, divided, `rows` times.
extern "C" __global__ void __launch_bounds__(THREADS) repeat_rows(
    u64 x, u64 y, long long rows, long long vectors, long long lanes, long long tiles, long long rows_of_block,
    long long blocks_of_row, double divisor) {
    const Lane lane(vectors, lanes, tiles);
    if (!lane.exists) return;
    const u32 source = lane.part / static_cast<u32>(blocks_of_row);
    const long long first = (lane.part - source * blocks_of_row) * rows_of_block, end = min(first + rows_of_block, rows);
    float value[WIDTH];
    load(x, (source * vectors + lane.vector) * WIDTH, value);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) value[k] /= static_cast<float>(divisor);
    for (long long row = first + lane.row; row < end; row += lane.step) {
        store(y, ((source * rows + row) * vectors + lane.vector) * WIDTH, value);
    }
}

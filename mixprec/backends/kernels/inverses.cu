// Inverses of symmetric, positive definite matrices (groups, size, size) in float32, by their Cholesky factors L: the
// inverse is X^T X for X = 1 / L. A matrix that is not positive definite, or not finite, becomes NaN.
//
// A step of the elimination of [matrix | 1] needs neither the columns before the pivot of the one, nor those from it on
// of the other, so that both lie in one matrix: below its diagonal X grows while the matrix is used up.

constexpr int ROWS = 64;  // of a block at most: it takes 16 KiB of shared memory

// An element with the shift of the diagonal. inf becomes NaN, which comes into all pivots below and at the right.
__device__ __forceinline__ float shifted(const float* moments, const float* shifts, long long group, long long size,
                                         long long i) {
    const float x = moments[group * size * size + i], sum = i % (size + 1) ? x : x + shifts[group];
    return isfinite(sum) ? sum : __uint_as_float(0x7fffffffu);
}

// Replaces a matrix, of which the triangle above the diagonal counts, by X below and on the diagonal. All threads of the
// block come here. Returns false, to all of them, if a pivot is not above 0.
__device__ __forceinline__ bool factor(float (&matrix)[ROWS * ROWS], u32 size) {
    __shared__ float line[ROWS];  // of X and of L
    bool is_definite = true;
    for (u32 k = 0; k < size; ++k) {
        __syncthreads();
        const float pivot = matrix[k * size + k], scale = 1.0f / sqrtf(pivot);
        is_definite = is_definite && pivot > 0.0f;
        for (u32 i = threadIdx.x; i < size; i += THREADS) line[i] = i == k ? scale : matrix[k * size + i] * scale;
        __syncthreads();
        for (u32 i = k * size + threadIdx.x; i < size * size; i += THREADS) {
            const u32 row = i / size, column = i - row * size;
            matrix[i] = row == k ? line[column] : (column == k ? 0.0f : matrix[i]) - line[row] * line[column];
        }
    }
    __syncthreads();
    return is_definite;
}

// Matrices of at most ROWS rows, a block for each.
extern "C" __global__ void __launch_bounds__(THREADS) small_inverses(
    const float* moments, const float* shifts, float* found, long long size) {
    __shared__ float matrix[ROWS * ROWS];
    const u32 rows = size, count = rows * rows;
    for (u32 i = threadIdx.x; i < count; i += THREADS) matrix[i] = shifted(moments, shifts, blockIdx.x, size, i);
    const bool is_definite = factor(matrix, rows);
    for (u32 i = threadIdx.x; i < count; i += THREADS) {
        const u32 row = i / rows, column = i - row * rows;
        float sum = 0.0f;
        for (u32 k = max(row, column); k < rows; ++k) sum += matrix[k * rows + row] * matrix[k * rows + column];
        found[blockIdx.x * size * size + i] = is_definite ? sum : __uint_as_float(0x7fffffffu);
    }
}

// What is to be inverted, and zeros for the sum that the inverse is, a thread for each element.
extern "C" __global__ void __launch_bounds__(THREADS) begin_inverses(
    const float* moments, const float* shifts, float* matrices, float* found, long long groups, long long size) {
    const long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x, count = size * size;
    if (i >= groups * count) return;
    const long long group = i / count;
    matrices[i] = shifted(moments, shifts, group, size, i - group * count);
    found[i] = 0.0f;
}

// One of the steps with `rows` rows at a time, which products go on with. The block of the diagonal that begins at row
// `first` becomes the identity, its X goes to `factors` (groups, ROWS, ROWS), and what is below it becomes 0. `blocks`
// blocks for each matrix: the first one factors, the others write zeros.
extern "C" __global__ void __launch_bounds__(THREADS) factor_blocks(
    float* matrices, float* factors, long long size, long long first, long long rows, long long blocks) {
    __shared__ float matrix[ROWS * ROWS];
    const long long group = blockIdx.x / blocks, part = blockIdx.x - group * blocks;
    float* corner = matrices + (group * size + first) * size + first;
    const u32 side = rows, count = side * side;
    if (part) {
        const long long end = (size - first - rows) * rows;
        for (long long i = (part - 1) * THREADS + threadIdx.x; i < end; i += (blocks - 1) * THREADS) {
            const long long row = i / rows;
            corner[(rows + row) * size + (i - row * rows)] = 0.0f;
        }
        return;
    }
    for (u32 i = threadIdx.x; i < count; i += THREADS) {
        const u32 row = i / side, column = i - row * side;
        matrix[i] = corner[row * size + column];
        corner[row * size + column] = row == column ? 1.0f : 0.0f;
    }
    const bool is_definite = factor(matrix, side);
    for (u32 i = threadIdx.x; i < count; i += THREADS) {
        const u32 row = i / side, column = i - row * side;
        factors[(group * ROWS + row) * ROWS + column] =
            is_definite ? (column <= row ? matrix[i] : 0.0f) : __uint_as_float(0x7fffffffu);
    }
}

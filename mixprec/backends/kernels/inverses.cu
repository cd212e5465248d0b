// Inverses of symmetric, positive definite matrices (groups, size, size) in float32: small ones by themselves, and what
// comes before and after cuSOLVER for others. A matrix that is not positive definite, or not finite, becomes NaN.

constexpr int SMALL = 64;  // rows of a small matrix at most: it takes 16 KiB of shared memory

__device__ __forceinline__ float nan_unless_finite(float x) { return isfinite(x) ? x : __uint_as_float(0x7fffffffu); }

// An element with the shift of the diagonal; inf as NaN, which spreads over the whole inverse.
__device__ __forceinline__ float shifted(const float* moments, const float* shifts, long long group, u32 size, u32 i) {
    const float x = moments[group * size * size + i];
    return nan_unless_finite(i % (size + 1) ? x : x + shifts[group]);
}

// A block for each matrix. It is inverted in place by Gauss-Jordan elimination without pivoting, which is stable for
// such matrices (Higham 2002, "Accuracy and stability of numerical algorithms", section 14.4). The sign is that of the
// sweep operator, so that all steps leave the matrix symmetric. Pivots are the squares of the diagonal of its Cholesky
// factor: one that is not above 0 says that the matrix is not positive definite.
extern "C" __global__ void __launch_bounds__(THREADS) small_inverses(
    const float* moments, const float* shifts, float* found, long long rows) {
    __shared__ float matrix[SMALL * SMALL];
    __shared__ float line[SMALL];
    const u32 size = rows, count = size * size;
    for (u32 i = threadIdx.x; i < count; i += THREADS) matrix[i] = shifted(moments, shifts, blockIdx.x, size, i);
    bool is_definite = true;  // to all threads alike
    for (u32 k = 0; k < size; ++k) {
        __syncthreads();
        for (u32 i = threadIdx.x; i < size; i += THREADS) line[i] = matrix[k * size + i];
        __syncthreads();
        const float pivot = line[k], inverse = 1.0f / pivot;
        is_definite = is_definite && pivot > 0.0f;
        for (u32 i = threadIdx.x; i < count; i += THREADS) {
            const u32 row = i / size, column = i - row * size;
            if (row == k || column == k) {
                matrix[i] = row == column ? -inverse : line[row == k ? column : row] * inverse;
            } else {
                matrix[i] -= line[row] * line[column] * inverse;
            }
        }
    }
    for (u32 i = threadIdx.x; i < count; i += THREADS) {  // those of this thread
        found[blockIdx.x * static_cast<long long>(count) + i] = is_definite ? -matrix[i] : __uint_as_float(0x7fffffffu);
    }
}

// What is to be inverted, a thread for each element.
extern "C" __global__ void __launch_bounds__(THREADS) shift_diagonals(
    const float* moments, const float* shifts, float* found, long long groups, long long size) {
    const long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x, count = size * size;
    if (i >= groups * count) return;
    const long long group = i / count;
    found[i] = shifted(moments, shifts, group, size, i - group * count);
}

// Copies the triangles at the right and above to those at the left and below, a thread for each element; `info` (groups,
// 2) is what cuSOLVER says of each matrix, 0 if all is well. Every NaN spreads to the last pivot, and so to the last
// element, also if cuSOLVER does not tell.
extern "C" __global__ void __launch_bounds__(THREADS) mirror_triangles(
    float* found, const int* info, long long groups, long long size) {
    const long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x, count = size * size;
    if (i >= groups * count) return;
    const long long group = i / count;
    const u32 place = i - group * count, row = place / static_cast<u32>(size), column = place - row * size;
    const float last = found[(group + 1) * count - 1];
    if (info[2 * group] || info[2 * group + 1] || last != last) {
        found[i] = __uint_as_float(0x7fffffffu);
    } else if (column < row) {
        found[i] = found[group * count + column * size + row];
    }
}

// Local response normalization over the last axis of rows. A thread has a group of WIDTH neighbouring channels of one
// row; groups are counted through all rows. Windows reach over groups to the left and to the right, which are read again:
// they are in a cache, or, backward, in shared memory if a thread of the same block has them.

#define NORM long long groups, long long groups_of_row, long long reach, double k, double alpha, double beta

#define NORM_GIVEN \
    {groups_of_row, int(reach), static_cast<float>(k), static_cast<float>(alpha), static_cast<float>(beta)}

struct Norm {
    long long groups_of_row;
    int reach;  // of a window, to each side, in channels
    float k, alpha, beta;

    // Whether the group at this distance from group i is in the same row.
    __device__ __forceinline__ bool has(long long i, int distance) const {
        const long long place = static_cast<u64>(i) % static_cast<u64>(groups_of_row) + distance;
        return place >= 0 && place < groups_of_row;
    }
};

// The sums over the windows of a group, from the element itself to those that are furthest, as on NumPy.
//
// other(distance, values) has the elements of the group that many groups to the right, zeros outside of the row.
template <class Other>
__device__ __forceinline__ void sum_windows(
    int reach, const float (&own)[WIDTH], Other other, float (&sum)[WIDTH]) {
    float left[WIDTH], right[WIDTH];
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) sum[k] = left[k] = right[k] = own[k];
#pragma unroll 1
    for (int distance = 1; reach > 0; ++distance, reach -= WIDTH) {
        float next_left[WIDTH], next_right[WIDTH];
        other(-distance, next_left);
        other(distance, next_right);
        // All indices are known when this is compiled, so that everything stays in registers.
#pragma unroll
        for (int step = 1; step <= WIDTH; ++step) {
            if (step > reach) continue;
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) {
                sum[k] += k < step ? next_left[WIDTH + k - step] : left[k - step];
                sum[k] += k + step < WIDTH ? right[k + step] : next_right[k + step - WIDTH];
            }
        }
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
            left[k] = next_left[k];
            right[k] = next_right[k];
        }
    }
}

// The elements of group i of x, the bases k + alpha * (sum of squares) of their powers, and the powers -beta.
__device__ __forceinline__ void normalize(
    const Norm& norm, u64 x, long long i, float (&value)[WIDTH], float (&base)[WIDTH], float (&factor)[WIDTH]) {
    float square[WIDTH];
    load(x, i * WIDTH, value);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) square[k] = value[k] * value[k];
    sum_windows(norm.reach, square, [&](int distance, float (&other)[WIDTH]) {
        const bool exists = norm.has(i, distance);
        if (exists) load(x, (i + distance) * WIDTH, other);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) other[k] = exists ? other[k] * other[k] : 0.0f;
    }, base);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) {
        base[k] = base[k] * norm.alpha + norm.k;
        if (norm.beta == 0.75f) {  // as everybody has it: powf takes several times as long
            const float root = sqrtf(base[k]);
            factor[k] = 1.0f / (root * sqrtf(root));
        } else {
            factor[k] = powf(base[k], -norm.beta);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) local_response_norm(u64 x, u64 y, NORM) {
    const Norm norm = NORM_GIVEN;
    const long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= groups) return;
    float value[WIDTH], base[WIDTH], factor[WIDTH];
    normalize(norm, x, i, value, base, factor);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) value[k] *= factor[k];
    store(y, i * WIDTH, value);
}

// What the gradients of channels around depend on: dy * x * base^(-beta - 1), of group i; also the gradient and factors.
__device__ __forceinline__ void terms_of(
    const Norm& norm, u64 dy, u64 x, long long i, float (&value)[WIDTH], float (&gradient)[WIDTH],
    float (&factor)[WIDTH], float (&term)[WIDTH]) {
    float base[WIDTH];
    normalize(norm, x, i, value, base, factor);
    load(dy, i * WIDTH, gradient);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) term[k] = value[k] * factor[k] / base[k] * gradient[k];
}

// slope = 2 * alpha * beta
extern "C" __global__ void __launch_bounds__(THREADS) local_response_norm_backward(
    u64 dy, u64 x, u64 dx, NORM, double slope) {
    __shared__ float terms[WIDTH][THREADS];
    const Norm norm = NORM_GIVEN;
    const int me = threadIdx.x;
    const long long i = static_cast<long long>(blockIdx.x) * THREADS + me;
    float value[WIDTH], gradient[WIDTH], factor[WIDTH], term[WIDTH];
    if (i < groups) {
        terms_of(norm, dy, x, i, value, gradient, factor, term);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) terms[k][me] = term[k];
    }
    __syncthreads();
    if (i >= groups) return;
    float sum[WIDTH];
    sum_windows(norm.reach, term, [&](int distance, float (&other)[WIDTH]) {
        const int thread = me + distance;
        if (!norm.has(i, distance)) {
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) other[k] = 0.0f;
        } else if (thread >= 0 && thread < THREADS) {
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) other[k] = terms[k][thread];
        } else {  // at the edge of a block: computed twice, in place of a second launch
            float other_value[WIDTH], other_gradient[WIDTH], other_factor[WIDTH];
            terms_of(norm, dy, x, i + distance, other_value, other_gradient, other_factor, other);
        }
    }, sum);
    const float negative = -static_cast<float>(slope);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) value[k] = gradient[k] * factor[k] + sum[k] * value[k] * negative;
    store(dx, i * WIDTH, value);
}

// Local response normalization of rows. A thread has a group of WIDTH neighbouring channels of one row; groups are
// counted through all rows. Windows reach over groups to the left and to the right, which are read again: they are in a
// cache, or, backward, in shared memory if a thread of the same block has them.

#define NORM long long groups, long long groups_of_row, long long reach, double k, double alpha, double beta

#define NORM_GIVEN \
    {int(groups_of_row), int(reach), static_cast<float>(k), static_cast<float>(alpha), static_cast<float>(beta)}

struct Norm {
    int groups_of_row;
    int reach;  // of a window, to each side, in channels
    float k, alpha, beta;
};

struct Group {
    long long i;  // among those of all rows
    int place;    // in its row

    __device__ __forceinline__ Group(const Norm& norm)
        : i(static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x),
          place(static_cast<u64>(i) % static_cast<u32>(norm.groups_of_row)) {}

    __device__ __forceinline__ Group(long long i, int place) : i(i), place(place) {}

    // The group so many groups to the right, and whether it is there.
    __device__ __forceinline__ Group at(int distance) const { return {i + distance, place + distance}; }
    __device__ __forceinline__ bool exists(const Norm& norm) const { return place >= 0 && place < norm.groups_of_row; }
};

// Adds the elements on one side of a window: SIDE is -1 for those to the left, 1 for those to the right.
//
// own has the elements of the group itself; other(distance, values) those of the group that many groups to the right,
// zeros outside of the row.
template <int SIDE, class Other>
__device__ __forceinline__ void add_side(
    int reach, const float (&own)[WIDTH], const Other& other, float (&sum)[WIDTH]) {
    float near[WIDTH];
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) near[k] = own[k];
#pragma unroll 1
    for (int distance = 1; reach > 0; ++distance, reach -= WIDTH) {
        float far[WIDTH];
        other(SIDE * distance, far);
        // All indices are known when this is compiled, so that everything stays in registers.
#pragma unroll
        for (int step = 1; step <= WIDTH; ++step) {
            if (step > reach) continue;
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) {
                const int place = k + SIDE * step;
                sum[k] += place < 0 ? far[place + WIDTH] : place < WIDTH ? near[place] : far[place - WIDTH];
            }
        }
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) near[k] = far[k];
    }
}

// The sums over the windows of a group: the element itself, what is to the left, then what is to the right, each from
// near to far, as on NumPy.
template <class Other>
__device__ __forceinline__ void sum_windows(
    int reach, const float (&own)[WIDTH], const Other& other, float (&sum)[WIDTH]) {
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) sum[k] = own[k];
    add_side<-1>(reach, own, other, sum);
    add_side<1>(reach, own, other, sum);
}

// The elements of a group of x, the bases k + alpha * (sum of squares) of their powers, and the powers -beta.
__device__ __forceinline__ void normalize(
    const Norm& norm, u64 x, const Group& group, float (&value)[WIDTH], float (&base)[WIDTH], float (&factor)[WIDTH]) {
    float square[WIDTH];
    load(x, group.i * WIDTH, value);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) square[k] = value[k] * value[k];
    sum_windows(norm.reach, square, [&](int distance, float (&other)[WIDTH]) {
        const Group there = group.at(distance);
        const bool exists = there.exists(norm);
        if (exists) load(x, there.i * WIDTH, other);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) other[k] = exists ? other[k] * other[k] : 0.0f;
    }, base);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) {
        base[k] = base[k] * norm.alpha + norm.k;
        if (norm.beta == 0.75f) {  // as everybody has it: fewer instructions than powf
            const float root = sqrtf(base[k]);
            factor[k] = 1.0f / (root * sqrtf(root));
        } else {
            factor[k] = powf(base[k], -norm.beta);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) local_response_norm(u64 x, u64 y, NORM) {
    const Norm norm = NORM_GIVEN;
    const Group group(norm);
    if (group.i >= groups) return;
    float value[WIDTH], base[WIDTH], factor[WIDTH];
    normalize(norm, x, group, value, base, factor);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) value[k] *= factor[k];
    store(y, group.i * WIDTH, value);
}

// What the gradients of the channels around take from a group, dy * x * base^(-beta - 1). Also its elements, and
// dy * base^-beta, the other part of its own gradients.
__device__ __forceinline__ void terms_of(
    const Norm& norm, u64 dy, u64 x, const Group& group, float (&value)[WIDTH], float (&direct)[WIDTH],
    float (&term)[WIDTH]) {
    float base[WIDTH], factor[WIDTH];
    normalize(norm, x, group, value, base, factor);
    load(dy, group.i * WIDTH, direct);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) {
        term[k] = value[k] * factor[k] / base[k] * direct[k];
        direct[k] *= factor[k];
    }
}

// slope = -2 * alpha * beta
extern "C" __global__ void __launch_bounds__(THREADS) local_response_norm_backward(
    u64 dy, u64 x, u64 dx, NORM, double slope) {
    __shared__ float terms[WIDTH][THREADS];
    const Norm norm = NORM_GIVEN;
    const Group group(norm);
    const int me = threadIdx.x;
    float value[WIDTH], direct[WIDTH], term[WIDTH];
    if (group.i < groups) {
        terms_of(norm, dy, x, group, value, direct, term);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) terms[k][me] = term[k];
    }
    __syncthreads();
    if (group.i >= groups) return;
    float sum[WIDTH];
    sum_windows(norm.reach, term, [&](int distance, float (&other)[WIDTH]) {
        const Group there = group.at(distance);
        const int thread = me + distance;
        if (!there.exists(norm)) {
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) other[k] = 0.0f;
        } else if (thread >= 0 && thread < THREADS) {
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) other[k] = terms[k][thread];
        } else {  // beyond the edge of the block: computed here, too, in place of a second launch
            float other_value[WIDTH], other_direct[WIDTH];
            terms_of(norm, dy, x, there, other_value, other_direct, other);
        }
    }, sum);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) value[k] = direct[k] + sum[k] * value[k] * static_cast<float>(slope);
    store(dx, group.i * WIDTH, value);
}

// Softmax and its logarithm of arrays (outer, count, inner), along the middle axis: of lines. The elements of a line
// are read anew for each thing that is to be known of it, from a cache if it is not too long.
//
// A line has `lanes` threads: a power of two up to a warp, or a block. If its elements are no neighbours, inner is not 1,
// WIDTH is 1, and one thread is best, so that neighbouring threads have neighbouring elements - but for few long lines.

constexpr int AT_ONCE = WIDTH == 1 ? 4 : 1;  // reads of a thread that are under way

struct Line {
    long long first, step, count;  // the first element, from one to the next, and how many; none if it does not exist
    int lanes;

    __device__ __forceinline__ Line(long long lines, long long count_, long long inner, long long lanes_) {
        lanes = lanes_;
        const long long number = static_cast<long long>(blockIdx.x) * (THREADS / lanes) + threadIdx.x / lanes;
        const long long outer = inner == 1 ? number : number / inner;
        first = outer * count_ * inner + (number - outer * inner);
        step = inner;
        count = number < lines ? count_ : 0;
    }

    // Calls visit(index of WIDTH elements) for the part of the line that the thread has.
    template <class Visit>
    __device__ __forceinline__ void for_each(Visit visit) const {
#pragma unroll AT_ONCE
        for (long long c = threadIdx.x % lanes * WIDTH; c < count; c += lanes * WIDTH) visit(first + c * step);
    }
};

// y = exp(x) / sum(exp(x)), or the logarithm of that, all relative to the largest x: nothing overflows.
extern "C" __global__ void __launch_bounds__(THREADS) softmax(
    u64 x, u64 y, long long lines, long long count, long long inner, long long lanes, long long is_log) {
    const Line line(lines, count, inner, lanes);
    float largest = __uint_as_float(0xff800000);  // -inf
    line.for_each([&](long long i) {
        float value[WIDTH];
        load(x, i, value);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) largest = fmaxf(largest, value[k]);
    });
    largest = combined(largest, line.lanes, Largest());
    float sum = 0;
    line.for_each([&](long long i) {
        float value[WIDTH];
        load(x, i, value);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) sum += expf(value[k] - largest);
    });
    sum = combined(sum, line.lanes, Sum());
    const float log_sum = logf(sum);
    line.for_each([&](long long i) {
        float value[WIDTH];
        load(x, i, value);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
            value[k] = is_log ? value[k] - largest - log_sum : expf(value[k] - largest) / sum;
        }
        store(y, i, value);
    });
}

// dx = y * (dy - sum(y * dy)); for the logarithm dy - exp(y) * sum(dy).
extern "C" __global__ void __launch_bounds__(THREADS) softmax_backward(
    u64 y, u64 dy, u64 dx, long long lines, long long count, long long inner, long long lanes, long long is_log) {
    const Line line(lines, count, inner, lanes);
    float sum = 0;
    line.for_each([&](long long i) {
        float value[WIDTH], gradient[WIDTH];
        load(dy, i, gradient);
        if (!is_log) load(y, i, value);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) sum += is_log ? gradient[k] : value[k] * gradient[k];
    });
    sum = combined(sum, line.lanes, Sum());
    line.for_each([&](long long i) {
        float value[WIDTH], gradient[WIDTH];
        load(y, i, value);
        load(dy, i, gradient);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
            gradient[k] = is_log ? gradient[k] - expf(value[k]) * sum : value[k] * (gradient[k] - sum);
        }
        store(dx, i, gradient);
    });
}

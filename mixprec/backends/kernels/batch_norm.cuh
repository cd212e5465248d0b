// What batch normalization in both layouts has in common: moments, their reduction, and running statistics.

#define COMBINED 8  // channels that a block combines the parts of: 32 bytes of floats

// Where scale and bias of y = scale * x + bias come from: gamma, beta, mean, and this; or they are gamma and beta; or the
// statistics come from sums, see BatchSums.
enum Spread { INVSTD, VARIANCE, AFFINE, SUMS };

__device__ __forceinline__ float invstd_of(float spread, int kind, float eps) {
    return kind == VARIANCE ? 1.0f / sqrtf(spread + eps) : spread;
}

// scale and bias of one channel, always by the same operations: a backward pass has to find the forward's.
__device__ __forceinline__ void affine_of(float gamma, float beta, float mean, float invstd, float& scale, float& bias) {
    scale = gamma * invstd;
    bias = beta - mean * scale;
}

// Mean and sum of squared distances from it, of `count` elements.
struct Moments {
    float count, mean, squares;

    // Chan, Golub and LeVeque 1983, doi:10.1080/00031305.1983.10483115.
    __device__ __forceinline__ void operator+=(const Moments& other) {
        if (other.count == 0.0f) return;
        const float all = count + other.count, share = other.count / all, distance = other.mean - mean;
        squares += other.squares + distance * distance * (count * share);
        mean += distance * share;
        count = all;
    }
};

struct Pair {
    float first, second;

    __device__ __forceinline__ void operator+=(const Pair& other) {
        first += other.first;
        second += other.second;
    }
};

// Adds up over the threads whose numbers are the same modulo `lanes`; those below `lanes` get the result. As a tree.
template <class T, int N>
__device__ __forceinline__ void reduce_columns(T (&values)[N], int lanes) {
    __shared__ T shared[N][THREADS / 2];
    for (int distance = THREADS / 2; distance >= lanes; distance /= 2) {
        __syncthreads();
        if (threadIdx.x >= distance && threadIdx.x < 2 * distance) {
#pragma unroll
            for (int k = 0; k < N; ++k) shared[k][threadIdx.x - distance] = values[k];
        }
        __syncthreads();
        if (threadIdx.x < distance) {
#pragma unroll
            for (int k = 0; k < N; ++k) values[k] += shared[k][threadIdx.x];
        }
    }
}

// Running statistics of a channel; addresses that are 0 are those of nothing to be moved.
struct Running {
    float *mean, *variance;
    double decay;

    __device__ __forceinline__ void move(int c, float count, float center, float biased) const {
        if (!mean) return;
        const float kept = static_cast<float>(decay), rest = static_cast<float>(1.0 - decay);
        mean[c] = kept * mean[c] + rest * center;
        variance[c] = kept * variance[c] + rest * (biased * (count / fmaxf(count - 1.0f, 1.0f)));
    }
};

// The statistics of a batch from sums that a convolution has taken, (2, channels): of each channel, and of its squares.
struct BatchSums {
    const float* sums;
    float *mean, *invstd;
    Running running;
    float count, eps;

    // Mean and 1 / standard deviation of a channel. Where `writes`, they are left for the backward pass, and the running
    // statistics move: once for each channel.
    __device__ __forceinline__ void finish(int c, int channels, bool writes, float& center, float& inverse) const {
        center = sums[c] / count;
        const float rest = sums[channels + c] / count - center * center, variance = rest < 0.0f ? 0.0f : rest;
        inverse = invstd_of(variance, VARIANCE, eps);
        if (!writes) return;
        mean[c] = center;
        invstd[c] = inverse;
        running.move(c, count, center, variance);
    }
};

// What a backward pass finds of a channel: the gradients of its parameters, and, if mean and variance depend on x, `slope`
// and `offset` of dx = scale * g + slope * (x - mean) + offset.
struct ChannelGradients {
    float *dgamma, *dbeta, *slope, *offset;

    // From the sums of g and of g * (x - mean) over `count` elements.
    __device__ __forceinline__ void finish(
        int c, float count, float gamma, float invstd, float sum, float from_center) const {
        const float scale = gamma * invstd, of_gamma = from_center * invstd;
        dgamma[c] = of_gamma;
        dbeta[c] = sum;
        if (!slope) return;
        slope[c] = -(scale * invstd * of_gamma) / count;
        offset[c] = -(scale * sum) / count;
    }
};

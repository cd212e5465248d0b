// Second moments of the gradients of gamma and beta of a batch normalization, each of one sample, in two launches: the
// gradients, and their squares. All sums are taken in an order that depends on nothing but shape and alignment.

constexpr int ROWS = 4;  // that a thread reads at once

// The gradients (samples, parts, 2, channels): of `places` rows of each sample those of one of `parts` parts. A block
// has `lanes` vectors of WIDTH neighbouring channels, a power of two, and THREADS / lanes rows at a time; `tiles` blocks
// lie beside each other. `relu`: dy is that behind a ReLU.
extern "C" __global__ void __launch_bounds__(THREADS, 2) scale_gradients(
    u64 dy, u64 x, const float* gamma, const float* beta, const float* mean, const float* invstd, float* gradients,
    long long places, long long vectors, long long lanes, long long tiles, long long parts, long long rows_of_part,
    long long relu) {
    const u32 above = blockIdx.x / static_cast<u32>(tiles), sample = above / static_cast<u32>(parts);
    const long long vector = (blockIdx.x - above * tiles) * lanes + threadIdx.x % lanes;
    const long long begin = (above - sample * parts) * rows_of_part, end = min(begin + rows_of_part, places);
    const long long step = THREADS / lanes, channels = vectors * WIDTH, channel = vector * WIDTH;
    Pair sums[WIDTH] = {};
    if (vector < vectors) {
        float center[WIDTH], scale[WIDTH], bias[WIDTH];
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
            center[k] = mean[channel + k];
            affine_of(gamma[channel + k], beta[channel + k], center[k], invstd[channel + k], scale[k], bias[k]);
        }
        const auto add = [&](float value, float gradient, int k) {
            const float own = relu && !(scale[k] * value + bias[k] > 0.0f) ? 0.0f : gradient;
            sums[k] += {own * (value - center[k]), own};
        };
        const long long above_all = sample * places;
        long long row = begin + threadIdx.x / lanes;
        for (; row + (ROWS - 1) * step < end; row += ROWS * step) {
            Elements values[ROWS], given[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const long long at = (above_all + row + r * step) * channels + channel;
                values[r].load(x, at);
                given[r].load(dy, at);
            }
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
#pragma unroll
                for (int k = 0; k < WIDTH; ++k) add(values[r][k], given[r][k], k);
            }
        }
#pragma unroll 1
        for (; row < end; row += step) {
            Elements values, given;
            const long long at = (above_all + row) * channels + channel;
            values.load(x, at);
            given.load(dy, at);
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) add(values[k], given[k], k);
        }
    }
    reduce_columns(sums, lanes);
    if (threadIdx.x >= lanes || vector >= vectors) return;
    float* own = gradients + above * 2 * channels + channel;
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) {
        own[k] = sums[k].first * invstd[channel + k];
        own[channels + k] = sums[k].second;
    }
}

struct Squares {
    float of_gamma, mixed, of_beta;

    __device__ __forceinline__ void operator+=(const Squares& other) {
        of_gamma += other.of_gamma;
        mixed += other.mixed;
        of_beta += other.of_beta;
    }
};

// Adds their second moments to `found` (3, channels): the sums over samples. A block has `lanes` channels, a power of
// two, and THREADS / lanes samples at a time.
extern "C" __global__ void __launch_bounds__(THREADS) scale_squares(
    const float* gradients, float* found, long long samples, long long parts, long long channels, long long lanes) {
    const long long channel = blockIdx.x * lanes + threadIdx.x % lanes;
    Squares sums[1] = {};
    if (channel < channels) {
        for (long long sample = threadIdx.x / lanes; sample < samples; sample += THREADS / lanes) {
            Pair gradient = {0.0f, 0.0f};
            const float* of_part = gradients + sample * parts * 2 * channels + channel;
            for (long long part = 0; part < parts; ++part, of_part += 2 * channels) {
                gradient += {of_part[0], of_part[channels]};
            }
            sums[0] += {gradient.first * gradient.first, gradient.first * gradient.second,
                        gradient.second * gradient.second};
        }
    }
    reduce_columns(sums, lanes);
    if (threadIdx.x >= lanes || channel >= channels) return;
    found[channel] += sums[0].of_gamma;
    found[channels + channel] += sums[0].mixed;
    found[2 * channels + channel] += sums[0].of_beta;
}

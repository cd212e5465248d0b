// Batch normalization of arrays (rows, channels), forward and backward, in three launches each: partial statistics of
// parts of the rows, their combination, and the pass that writes the result.
//
// A thread has a group of eight neighbouring channels, and every so many rows of a part; `lanes` threads lie beside each
// other in a row. With WIDTH above 1 rows consist of whole groups, which 16-byte accesses read and write; otherwise
// elements are read one by one, and the last group may be shorter. All sums are taken in an order that depends on
// nothing but the shape.

constexpr int GROUP = 8;
constexpr int ROWS = 2;  // that a thread reads before it writes the first of them
constexpr int MIN_BLOCKS = 2;  // at a time; for more the compiler spills registers

// How a backward pass knows where a ReLU was open.
enum Opening { ALWAYS, RECOMPUTED, BITS, OUTPUT };

struct Tile {
    int channel;  // the first of the group
    int count;    // channels of the group; 0: the thread has none
    long long begin, end, step;  // rows

    __device__ __forceinline__ Tile(long long rows, int channels, int lanes, long long part_rows) {
        const int groups = (channels + GROUP - 1) / GROUP;
        const int tiles = (groups + lanes - 1) / lanes;
        const int group = blockIdx.x % tiles * lanes + threadIdx.x % lanes;
        const long long first = blockIdx.x / tiles * part_rows;
        channel = group * GROUP;
        count = group >= groups ? 0 : WIDTH > 1 ? GROUP : min(GROUP, channels - channel);
        begin = first + threadIdx.x / lanes;
        end = min(rows, first + part_rows);
        step = THREADS / lanes;
    }
};

__device__ __forceinline__ void load_group(u64 address, long long i, const Tile& tile, float (&x)[GROUP]) {
    if constexpr (WIDTH > 1) {
        load(address, i, x);
    } else {
#pragma unroll
        for (int k = 0; k < GROUP; ++k) {
            float one[1] = {0.0f};
            if (k < tile.count) load(address, i + k, one);
            x[k] = one[0];
        }
    }
}

__device__ __forceinline__ void store_group(u64 address, long long i, const Tile& tile, const float (&x)[GROUP]) {
    if constexpr (WIDTH > 1) {
        store(address, i, x);
    } else {
#pragma unroll
        for (int k = 0; k < GROUP; ++k) {
            const float one[1] = {x[k]};
            if (k < tile.count) store(address, i + k, one);
        }
    }
}

// What is per channel, float32; a value instead if there is no array.
__device__ __forceinline__ void load_channels(
    const float* values, const Tile& tile, float (&x)[GROUP], float missing = 0.0f) {
    const u64 address = reinterpret_cast<u64>(values + tile.channel);
    if (WIDTH > 1 && values && address % 16 == 0) {  // element by element a warp would go through its lines eight times
        load_four(address, x);
        load_four(address + 16, x + 4);
        return;
    }
#pragma unroll
    for (int k = 0; k < GROUP; ++k) x[k] = values && k < tile.count ? values[tile.channel + k] : missing;
}

__device__ __forceinline__ void store_channels(float* values, const Tile& tile, const float (&x)[GROUP]) {
#pragma unroll
    for (int k = 0; k < GROUP; ++k) {
        if (k < tile.count) values[tile.channel + k] = x[k];
    }
}

// scale and bias of one channel, always by the same operations: a backward pass has to find the forward's.
__device__ __forceinline__ void affine_of(float gamma, float beta, float mean, float invstd, float& scale, float& bias) {
    scale = gamma * invstd;
    bias = beta - mean * scale;
}

// The parameters of a normalization. A gamma that is not there is 1.
struct Normalization {
    const float *gamma, *beta, *mean, *spread;
    int kind;
    float eps;

    __device__ __forceinline__ void affine(const Tile& tile, float (&scale)[GROUP], float (&bias)[GROUP]) const {
        load_channels(gamma, tile, scale, 1.0f);
        load_channels(beta, tile, bias);
        if (kind == AFFINE) return;
        float center[GROUP], spreads[GROUP];
        load_channels(mean, tile, center);
        load_channels(spread, tile, spreads);
#pragma unroll
        for (int k = 0; k < GROUP; ++k) {
            affine_of(scale[k], bias[k], center[k], invstd_of(spreads[k], kind, eps), scale[k], bias[k]);
        }
    }
};

// Forward

// Every thread takes its sums about its first element. As that is one of the elements, the difference below is at least
// the `count`th part of `squares`: little cancels.
extern "C" __global__ void __launch_bounds__(THREADS) batch_norm_statistics(
    u64 x, long long rows, long long channels, long long lanes, long long part_rows, float* partial) {
    const Tile tile(rows, channels, lanes, part_rows);
    Moments moments[GROUP] = {};
    if (tile.count && tile.begin < tile.end) {
        float first[GROUP], sum[GROUP] = {}, squares[GROUP] = {};
        load_group(x, tile.begin * channels + tile.channel, tile, first);
#pragma unroll 4
        for (long long row = tile.begin + tile.step; row < tile.end; row += tile.step) {
            float value[GROUP];
            load_group(x, row * channels + tile.channel, tile, value);
#pragma unroll
            for (int k = 0; k < GROUP; ++k) {
                const float distance = value[k] - first[k];
                sum[k] += distance;
                squares[k] += distance * distance;
            }
        }
        const float count = (tile.end - tile.begin + tile.step - 1) / tile.step;
#pragma unroll
        for (int k = 0; k < GROUP; ++k) {
            const float distance = sum[k] / count;
            moments[k] = {count, first[k] + distance, squares[k] - sum[k] * distance};
        }
    }
    reduce_columns(moments, lanes);
    if (threadIdx.x < lanes) {
        float mean[GROUP], squares[GROUP];
#pragma unroll
        for (int k = 0; k < GROUP; ++k) {
            mean[k] = moments[k].mean;
            squares[k] = moments[k].squares;
        }
        const long long part = tile.begin / part_rows;
        store_channels(partial + part * 2 * channels, tile, mean);
        store_channels(partial + (part * 2 + 1) * channels, tile, squares);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) batch_norm_finalize(
    const float* partial, long long parts, long long part_rows, long long rows, long long channels, float* mean,
    float* invstd, float* running_mean, float* running_variance, double decay, double eps, float* sums) {
    const int c = blockIdx.x * COMBINED + threadIdx.x % COMBINED;
    Moments moments[1] = {};
    if (c < channels) {
#pragma unroll 4
        for (long long part = threadIdx.x / COMBINED; part < parts; part += THREADS / COMBINED) {
            const float* of = partial + part * 2 * channels + c;
            const float count = min(part_rows, rows - part * part_rows);
            moments[0] += {count, of[0], of[channels]};
        }
    }
    reduce_columns(moments, COMBINED);
    if (threadIdx.x >= COMBINED || c >= channels) return;
    const Moments all = moments[0];
    if (sums) {  // in place of statistics: the sums that a convolution could have given
        sums[c] = all.mean * all.count;
        sums[channels + c] = all.squares + all.mean * all.mean * all.count;
        return;
    }
    const float variance = all.squares / all.count;
    mean[c] = all.mean;
    invstd[c] = invstd_of(variance, VARIANCE, static_cast<float>(eps));
    Running{running_mean, running_variance, decay}.move(c, all.count, all.mean, variance);
}

// From sums and sums of squares; also scale and bias for the prologue of a convolution, if asked for.
extern "C" __global__ void __launch_bounds__(THREADS) batch_norm_finalize_sums(
    const float* sums, long long rows, long long channels, const float* gamma, const float* beta, float* mean,
    float* invstd, float* scale, float* bias, float* running_mean, float* running_variance, double decay, double eps) {
    const int c = blockIdx.x * THREADS + threadIdx.x;
    if (c >= channels) return;
    const float count = rows, center = sums[c] / count, rest = sums[channels + c] / count - center * center;
    const float variance = rest < 0.0f ? 0.0f : rest;
    const float inverse = invstd_of(variance, VARIANCE, static_cast<float>(eps));
    mean[c] = center;
    invstd[c] = inverse;
    Running{running_mean, running_variance, decay}.move(c, count, center, variance);
    if (scale) affine_of(gamma[c], beta[c], center, inverse, scale[c], bias[c]);
}

// Running statistics from what a forward pass has saved: 1 / invstd^2 is the variance plus eps.
extern "C" __global__ void __launch_bounds__(THREADS) batch_norm_move_running(
    const float* mean, const float* invstd, long long rows, long long channels, float* running_mean,
    float* running_variance, double decay, double eps) {
    const int c = blockIdx.x * THREADS + threadIdx.x;
    if (c >= channels) return;
    const float rest = 1.0f / (invstd[c] * invstd[c]) - static_cast<float>(eps);
    Running{running_mean, running_variance, decay}.move(c, rows, mean[c], rest < 0.0f ? 0.0f : rest);
}

// y = relu(scale * x + bias + add), and eight bits for each group where it was open.
extern "C" __global__ void __launch_bounds__(THREADS) batch_norm_apply(
    u64 x, u64 add, u64 y, u64 mask, long long rows, long long channels, long long lanes, long long part_rows,
    const float* gamma, const float* beta, const float* mean, const float* spread, long long kind, double eps,
    long long relu) {
    const Tile tile(rows, channels, lanes, part_rows);
    if (!tile.count) return;
    const Normalization normalization = {gamma, beta, mean, spread, static_cast<int>(kind), static_cast<float>(eps)};
    float scale[GROUP], bias[GROUP];
    normalization.affine(tile, scale, bias);
    const long long groups = (channels + GROUP - 1) / GROUP;
    for (long long first = tile.begin; first < tile.end; first += ROWS * tile.step) {
        float values[ROWS][GROUP], others[ROWS][GROUP];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const long long row = first + r * tile.step, i = row * channels + tile.channel;
            if (row >= tile.end) break;
            load_group(x, i, tile, values[r]);
            if (add) load_group(add, i, tile, others[r]);
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const long long row = first + r * tile.step;
            if (row >= tile.end) break;
            float (&value)[GROUP] = values[r];
            u32 bits = 0;
#pragma unroll
            for (int k = 0; k < GROUP; ++k) {
                value[k] = scale[k] * value[k] + bias[k];
                if (add) value[k] += others[r][k];
                if (relu) {
                    if (value[k] > 0.0f) bits |= 1u << k;
                    value[k] = value[k] <= 0.0f ? 0.0f : value[k];  // NaN stays
                }
            }
            store_group(y, row * channels + tile.channel, tile, value);
            if (mask) reinterpret_cast<u8*>(mask)[row * groups + tile.channel / GROUP] = bits;
        }
    }
}

// Backward

// The gradient before the ReLU, by what is known of the forward pass.
struct Gate {
    int opening;
    u64 opened;  // bits or output
    long long channels;
    float scale[GROUP], bias[GROUP];

    __device__ __forceinline__ void operator()(
        long long row, const Tile& tile, const float (&x)[GROUP], float (&dy)[GROUP]) const {
        if (opening == RECOMPUTED) {
#pragma unroll
            for (int k = 0; k < GROUP; ++k) dy[k] = scale[k] * x[k] + bias[k] > 0.0f ? dy[k] : 0.0f;
        } else if (opening == BITS) {
            const long long groups = (channels + GROUP - 1) / GROUP;
            const u32 open = reinterpret_cast<const u8*>(opened)[row * groups + tile.channel / GROUP];
#pragma unroll
            for (int k = 0; k < GROUP; ++k) dy[k] = open >> k & 1 ? dy[k] : 0.0f;
        } else if (opening == OUTPUT) {
            float y[GROUP];
            load_group(opened, row * channels + tile.channel, tile, y);
#pragma unroll
            for (int k = 0; k < GROUP; ++k) dy[k] = y[k] > 0.0f ? dy[k] : 0.0f;
        }
    }
};

// The sums of dy and of dy * (x - mean).
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) batch_norm_backward_sums(
    u64 dy, u64 x, u64 opened, long long opening, long long rows, long long channels, long long lanes,
    long long part_rows, const float* gamma, const float* beta, const float* mean, const float* spread, long long kind,
    double eps, float* partial) {
    const Tile tile(rows, channels, lanes, part_rows);
    const Normalization normalization = {gamma, beta, mean, spread, static_cast<int>(kind), static_cast<float>(eps)};
    Pair sums[GROUP] = {};
    if (tile.count) {
        Gate gate = {static_cast<int>(opening), opened, channels};
        normalization.affine(tile, gate.scale, gate.bias);
        float center[GROUP];
        load_channels(mean, tile, center);
#pragma unroll 2
        for (long long row = tile.begin; row < tile.end; row += tile.step) {
            const long long i = row * channels + tile.channel;
            float value[GROUP], gradient[GROUP];
            load_group(x, i, tile, value);
            load_group(dy, i, tile, gradient);
            gate(row, tile, value, gradient);
#pragma unroll
            for (int k = 0; k < GROUP; ++k) sums[k] += {gradient[k], gradient[k] * (value[k] - center[k])};
        }
    }
    reduce_columns(sums, lanes);
    if (threadIdx.x < lanes) {
        float first[GROUP], second[GROUP];
#pragma unroll
        for (int k = 0; k < GROUP; ++k) {
            first[k] = sums[k].first;
            second[k] = sums[k].second;
        }
        const long long part = tile.begin / part_rows;
        store_channels(partial + part * 2 * channels, tile, first);
        store_channels(partial + (part * 2 + 1) * channels, tile, second);
    }
}

// dgamma and dbeta; and, if mean and variance depend on x, `slope` and `offset` of
// dx = scale * dy + slope * (x - mean) + offset.
extern "C" __global__ void __launch_bounds__(THREADS) batch_norm_backward_finalize(
    const float* partial, long long parts, long long rows, long long channels, const float* gamma, const float* spread,
    long long kind, double eps, float* dgamma, float* dbeta, float* slope, float* offset) {
    const int c = blockIdx.x * COMBINED + threadIdx.x % COMBINED;
    Pair sums[1] = {};
    if (c < channels) {
#pragma unroll 4
        for (long long part = threadIdx.x / COMBINED; part < parts; part += THREADS / COMBINED) {
            const float* of = partial + part * 2 * channels + c;
            sums[0] += {of[0], of[channels]};
        }
    }
    reduce_columns(sums, COMBINED);
    if (threadIdx.x >= COMBINED || c >= channels) return;
    const float invstd = invstd_of(spread[c], kind, static_cast<float>(eps)), scale = gamma[c] * invstd;
    const float count = rows, of_gamma = sums[0].second * invstd;
    dgamma[c] = of_gamma;
    dbeta[c] = sums[0].first;
    if (slope) {
        slope[c] = -(scale * invstd * of_gamma) / count;
        offset[c] = -(scale * sums[0].first) / count;
    }
}

// dx, and the gradient of what was added: dy where the ReLU was open.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) batch_norm_backward_apply(
    u64 dy, u64 x, u64 opened, long long opening, u64 dx, u64 dadd, long long rows, long long channels, long long lanes,
    long long part_rows, const float* gamma, const float* beta, const float* mean, const float* spread, long long kind,
    double eps, const float* slope, const float* offset) {
    const Tile tile(rows, channels, lanes, part_rows);
    if (!tile.count) return;
    const Normalization normalization = {gamma, beta, mean, spread, static_cast<int>(kind), static_cast<float>(eps)};
    Gate gate = {static_cast<int>(opening), opened, channels};
    normalization.affine(tile, gate.scale, gate.bias);
    float center[GROUP], slopes[GROUP], offsets[GROUP];
    load_channels(mean, tile, center);
    load_channels(slope, tile, slopes);
    load_channels(offset, tile, offsets);
    for (long long first = tile.begin; first < tile.end; first += ROWS * tile.step) {
        float values[ROWS][GROUP], gradients[ROWS][GROUP];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const long long row = first + r * tile.step, i = row * channels + tile.channel;
            if (row >= tile.end) break;
            load_group(dy, i, tile, gradients[r]);
            if (slope || opening == RECOMPUTED) load_group(x, i, tile, values[r]);
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const long long row = first + r * tile.step, i = row * channels + tile.channel;
            if (row >= tile.end) break;
            float (&gradient)[GROUP] = gradients[r];
            gate(row, tile, values[r], gradient);
            if (dadd) store_group(dadd, i, tile, gradient);
#pragma unroll
            for (int k = 0; k < GROUP; ++k) {
                gradient[k] *= gate.scale[k];
                if (slope) gradient[k] += slopes[k] * (values[r][k] - center[k]) + offsets[k];
            }
            store_group(dx, i, tile, gradient);
        }
    }
}

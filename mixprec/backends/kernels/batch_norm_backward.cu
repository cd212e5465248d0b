// The gradients of a batch normalization of arrays (rows, channels), in two launches: sums, and the pass that writes dx.
//
// Macros: OPENING, how to know where a ReLU was open; PLUS, whether there is another array to be added to dy; FACTORS,
// whether the images, of `image_rows` rows each, have factors behind the normalization.
//
// The gradient g of the normalization's own output is dy, or dy + plus, where the ReLU was open. Where more than dy and x
// has to be read to know it, the first pass writes it, in the storage dtype, and the second reads that instead: with a
// mask and its dadd that takes 6 arrays and a mask in place of 6 and two, with `plus` 7 and one in place of 8 and two.
// With factors g is what was written, and each pass multiplies it by them.

#include "batch_norm_rows.cuh"

#define ALWAYS 0
#define RECOMPUTED 1
#define BITS 2
#define OUTPUT 3

constexpr bool KEEPS = PLUS || OPENING == BITS || OPENING == OUTPUT;

// Zeros where the ReLU was closed: of scale * x + bias.
__device__ __forceinline__ void close(
    const float (&scale)[GROUP], const float (&bias)[GROUP], const float (&x)[GROUP], float (&gradient)[GROUP]) {
#pragma unroll
    for (int k = 0; k < GROUP; ++k) gradient[k] = scale[k] * x[k] + bias[k] > 0.0f ? gradient[k] : 0.0f;
}

__device__ __forceinline__ void multiply(float factor, float (&gradient)[GROUP]) {
#pragma unroll
    for (int k = 0; k < GROUP; ++k) gradient[k] *= factor;
}

// The sums of g and of g * (x - mean), and what follows from them. `opened` is bits or output, `kept` where to write g.
extern "C" __global__ void __launch_bounds__(THREADS, 2) batch_norm_backward_sums(
    u64 dy, u64 plus, u64 x, u64 opened, u64 kept, TILE, u64 partial, u32* counters, long long joined,
    const float* gamma, const float* beta, const float* mean, const float* spread, long long kind, double eps,
    float* dgamma, float* dbeta, float* slope, float* offset, const float* factors, long long image_rows) {
    constexpr int ROWS = ROWS_AT_ONCE<2 + PLUS + (OPENING == OUTPUT) + FACTORS>;
    Tile tile(TILE_GIVEN);
    const Normalization normalization = {gamma, beta, mean, spread, static_cast<int>(kind), static_cast<float>(eps)};
    GroupSums<2> sums[1] = {};
    if (tile.left > 0) {
        float scale[GROUP], bias[GROUP], center[GROUP];
        if constexpr (OPENING == RECOMPUTED) normalization.affine(tile, scale, bias);
        load_channels(mean, tile, center);
        each<ROWS>(tile, [&](const auto& some) {
            Raw values[ROWS], gradients[ROWS], others[ROWS], outputs[ROWS];
            u8 bits[ROWS];
            float of_rows[ROWS];  // before the loop, whose loads would wait for them
            if constexpr (FACTORS) {
#pragma unroll
                for (int r = 0; r < ROWS; ++r) of_rows[r] = factor_of(factors, some.at(r), image_rows);
            }
            load_rows(x, some, tile, channels, values);
            load_rows(dy, some, tile, channels, gradients);
            if constexpr (PLUS) load_rows(plus, some, tile, channels, others);
            if constexpr (OPENING == OUTPUT) load_rows(opened, some, tile, channels, outputs);
            if constexpr (OPENING == BITS) load_bits(opened, some, tile, bits);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                float value[GROUP], gradient[GROUP];
                widen(values[r], value);
                widen(gradients[r], gradient);
                if constexpr (PLUS) add_rounded(others[r], gradients[r], gradient);
                if constexpr (OPENING == RECOMPUTED) close(scale, bias, value, gradient);
                if constexpr (OPENING == BITS) close(bits[r], gradient);
                if constexpr (OPENING == OUTPUT) {
                    float y[GROUP];
                    widen(outputs[r], y);
#pragma unroll
                    for (int k = 0; k < GROUP; ++k) gradient[k] = y[k] > 0.0f ? gradient[k] : 0.0f;
                }
                if constexpr (KEEPS) {
                    narrow(gradient, gradients[r]);
                    store_raw(kept, some.at(r) * channels + tile.channel, tile, gradients[r]);
                }
                if constexpr (FACTORS) multiply(of_rows[r], gradient);
#pragma unroll
                for (int k = 0; k < GROUP; ++k) {
                    const float own = some.has(r) ? gradient[k] : 0.0f, from = some.has(r) ? value[k] : center[k];
                    sums[0].of[0][k] += own;
                    sums[0].of[1][k] += own * (from - center[k]);
                }
            }
        });
    }
    if (!Parts{partial, counters, joined, rows, part_rows}.sum(tile, lanes, sums) || threadIdx.x >= lanes) return;
    const ChannelGradients found = {dgamma, dbeta, slope, offset};
#pragma unroll
    for (int k = 0; k < GROUP; ++k) {
        if (k >= tile.count) break;
        const int c = tile.channel + k;
        const float invstd = invstd_of(spread[c], kind, static_cast<float>(eps));
        found.finish(c, rows, gamma[c], invstd, sums[0].of[0][k], sums[0].of[1][k]);
    }
}

// dx; `gradient` is g if that was kept, otherwise dy.
extern "C" __global__ void __launch_bounds__(THREADS, 2) batch_norm_backward_apply(
    u64 gradient, u64 x, u64 dx, TILE, const float* gamma, const float* beta, const float* mean, const float* spread,
    long long kind, double eps, const float* slope, const float* offset, long long backwards, const float* factors,
    long long image_rows) {
    constexpr int ROWS = ROWS_AT_ONCE<2>;
    constexpr bool RECOMPUTES = OPENING == RECOMPUTED && !KEEPS;
    Tile tile(TILE_GIVEN, backwards);
    if (tile.left <= 0) return;
    const Normalization normalization = {gamma, beta, mean, spread, static_cast<int>(kind), static_cast<float>(eps)};
    float scale[GROUP], bias[GROUP], center[GROUP], slopes[GROUP], offsets[GROUP];
    normalization.affine(tile, scale, bias);
    load_channels(mean, tile, center);
    load_channels(slope, tile, slopes);
    load_channels(offset, tile, offsets);
    const bool reads_x = RECOMPUTES || slope;
    each<ROWS>(tile, [&](const auto& some) {
        Raw values[ROWS] = {}, gradients[ROWS];
        if (reads_x) load_rows(x, some, tile, channels, values);
        load_rows(gradient, some, tile, channels, gradients);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            float value[GROUP], result[GROUP];
            widen(values[r], value);
            widen(gradients[r], result);
            if constexpr (RECOMPUTES) close(scale, bias, value, result);
            if constexpr (FACTORS) multiply(factor_of(factors, some.at(r), image_rows), result);
#pragma unroll
            for (int k = 0; k < GROUP; ++k) {
                result[k] *= scale[k];
                if (slope) result[k] += slopes[k] * (value[k] - center[k]) + offsets[k];
            }
            narrow(result, gradients[r]);
            store_raw(dx, some.at(r) * channels + tile.channel, tile, gradients[r]);
        }
    });
}

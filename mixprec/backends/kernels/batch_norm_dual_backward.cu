// The gradients of two batch normalizations that are added, in two launches: sums, and the pass that writes both dx.
//
// Macros, each 0 or 1: RELU, whether there is one behind the addition; PLUS, whether there is another array to be added to
// dy. The gradient g of both normalizations is dy, or dy + plus, where the ReLU was open; unless it is dy, the first pass
// writes it, in the storage dtype, and the second reads that. So both take 7 arrays and a mask, 8 with `plus`, and write 3.

#include "batch_norm_rows.cuh"

#define GRADIENTS(n)                                                                                                    \
    const float *gamma##n, const float *mean##n, const float *invstd##n, float *dgamma##n, float *dbeta##n,             \
        float *slope##n, float *offset##n

constexpr bool KEEPS = PLUS || RELU;
constexpr int BLOCKS = WIDTH > 1 ? 2 : 1;  // of a multiprocessor: with elements one by one, two have too few registers

// The sums of g and of g * (x - mean) of both, and what follows from them. `kept` is where to write g.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) batch_norm_dual_backward_sums(
    u64 dy, u64 plus, u64 x, u64 x_other, u64 mask, u64 kept, TILE, u64 partial, u32* counters, long long joined,
    GRADIENTS(), GRADIENTS(_other)) {
    constexpr int ROWS = ROWS_AT_ONCE<3 + PLUS>;
    Tile tile(TILE_GIVEN);
    GroupSums<3> sums[1] = {};
    if (tile.left > 0) {
        float center[GROUP], center_other[GROUP];
        load_channels(mean, tile, center);
        load_channels(mean_other, tile, center_other);
        each<ROWS>(tile, [&](const auto& some) {
            Raw values[ROWS], others[ROWS], gradients[ROWS], second[ROWS];
            u8 bits[ROWS];
            load_rows(x, some, tile, channels, values);
            load_rows(x_other, some, tile, channels, others);
            load_rows(dy, some, tile, channels, gradients);
            if constexpr (PLUS) load_rows(plus, some, tile, channels, second);
            if constexpr (RELU) load_bits(mask, some, tile, bits);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                float value[GROUP], other[GROUP], gradient[GROUP];
                widen(values[r], value);
                widen(others[r], other);
                widen(gradients[r], gradient);
                if constexpr (PLUS) add_rounded(second[r], gradients[r], gradient);
                if constexpr (RELU) close(bits[r], gradient);
                if constexpr (KEEPS) {
                    narrow(gradient, gradients[r]);
                    store_raw(kept, some.at(r) * channels + tile.channel, tile, gradients[r]);
                }
#pragma unroll
                for (int k = 0; k < GROUP; ++k) {
                    const float own = some.has(r) ? gradient[k] : 0.0f;
                    sums[0].of[0][k] += own;
                    sums[0].of[1][k] += own * ((some.has(r) ? value[k] : center[k]) - center[k]);
                    sums[0].of[2][k] += own * ((some.has(r) ? other[k] : center_other[k]) - center_other[k]);
                }
            }
        });
    }
    if (!Parts{partial, counters, joined, rows, part_rows}.sum(tile, lanes, sums) || threadIdx.x >= lanes) return;
    const ChannelGradients of_one = {dgamma, dbeta, slope, offset};
    const ChannelGradients of_other = {dgamma_other, dbeta_other, slope_other, offset_other};
#pragma unroll
    for (int k = 0; k < GROUP; ++k) {
        if (k >= tile.count) break;
        const int c = tile.channel + k;
        of_one.finish(c, rows, gamma[c], invstd[c], sums[0].of[0][k], sums[0].of[1][k]);
        of_other.finish(c, rows, gamma_other[c], invstd_other[c], sums[0].of[0][k], sums[0].of[2][k]);
    }
}

// What makes dx of g and x, of a group of channels.
struct Line {
    float scale[GROUP], center[GROUP], slope[GROUP], offset[GROUP];

    __device__ __forceinline__ Line(const Tile& tile, GRADIENTS(s)) {
        float inverse[GROUP];
        load_channels(gammas, tile, scale);
        load_channels(invstds, tile, inverse);
        load_channels(means, tile, center);
        load_channels(slopes, tile, slope);
        load_channels(offsets, tile, offset);
#pragma unroll
        for (int k = 0; k < GROUP; ++k) scale[k] *= inverse[k];
    }

    __device__ __forceinline__ void write(
        u64 dx, long long i, const Tile& tile, const float (&gradient)[GROUP], Raw& x) const {
        float value[GROUP];
        widen(x, value);
#pragma unroll
        for (int k = 0; k < GROUP; ++k) {
            value[k] = gradient[k] * scale[k] + (slope[k] * (value[k] - center[k]) + offset[k]);
        }
        narrow(value, x);
        store_raw(dx, i, tile, x);
    }
};

// Both dx, through memory from its end; `gradient` is g if that was kept, otherwise dy.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) batch_norm_dual_backward_apply(
    u64 gradient, u64 x, u64 x_other, u64 dx, u64 dx_other, TILE, GRADIENTS(), GRADIENTS(_other)) {
    constexpr int ROWS = ROWS_AT_ONCE<3>;
    Tile tile(TILE_GIVEN, true);
    if (tile.left <= 0) return;
    const Line one(tile, gamma, mean, invstd, dgamma, dbeta, slope, offset);
    const Line other(tile, gamma_other, mean_other, invstd_other, dgamma_other, dbeta_other, slope_other, offset_other);
    each<ROWS>(tile, [&](const auto& some) {
        Raw values[ROWS], others[ROWS], gradients[ROWS];
        load_rows(gradient, some, tile, channels, gradients);
        load_rows(x, some, tile, channels, values);
        load_rows(x_other, some, tile, channels, others);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const long long at = some.at(r) * channels + tile.channel;
            float own[GROUP];
            widen(gradients[r], own);
            one.write(dx, at, tile, own, values[r]);
            other.write(dx_other, at, tile, own, others[r]);
        }
    });
}

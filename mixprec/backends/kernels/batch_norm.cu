// The statistics of a batch normalization of arrays (rows, channels), in one launch.

#include "batch_norm_rows.cuh"

// Every thread takes its sums about its first element. As that is one of the elements, the difference below is at least
// the `count`th part of `squares`: little cancels. `sums` in place of statistics: those that a convolution could have
// given.
extern "C" __global__ void __launch_bounds__(THREADS, 3) batch_norm_statistics(
    u64 x, TILE, u64 partial, u32* counters, long long joined, float* mean, float* invstd, float* running_mean,
    float* running_variance, double decay, double eps, float* sums) {
    constexpr int ROWS = ROWS_AT_ONCE<1>;
    Tile tile(TILE_GIVEN);
    GroupMoments all[1] = {};
    if (tile.left > 0) {
        const float count = all[0].count = tile.left;
        Raw raw;
        float first[GROUP], sum[GROUP] = {}, squares[GROUP] = {};
        load_raw(x, tile.row * channels + tile.channel, tile, raw);
        widen(raw, first);
        each<ROWS>(tile, [&](const auto& some) {
            Raw rows_of[ROWS];
            load_rows(x, some, tile, channels, rows_of);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                float value[GROUP];
                widen(rows_of[r], value);
#pragma unroll
                for (int k = 0; k < GROUP; ++k) {
                    const float distance = some.has(r) ? value[k] - first[k] : 0.0f;
                    sum[k] += distance;
                    squares[k] += distance * distance;
                }
            }
        });
#pragma unroll
        for (int k = 0; k < GROUP; ++k) {
            const float distance = sum[k] / count;
            all[0].of[0][k] = first[k] + distance;
            all[0].of[1][k] = squares[k] - sum[k] * distance;
        }
    }
    if (!Parts{partial, counters, joined, rows, part_rows}.sum(tile, lanes, all) || threadIdx.x >= lanes) return;
    const Running running = {running_mean, running_variance, decay};
    const float count = rows;
#pragma unroll
    for (int k = 0; k < GROUP; ++k) {
        if (k >= tile.count) break;
        const int c = tile.channel + k;
        const float center = all[0].of[0][k], from_center = all[0].of[1][k];
        if (sums) {
            sums[c] = center * count;
            sums[channels + c] = from_center + center * center * count;
            continue;
        }
        const float variance = from_center / count;
        mean[c] = center;
        invstd[c] = invstd_of(variance, VARIANCE, static_cast<float>(eps));
        running.move(c, count, center, variance);
    }
}

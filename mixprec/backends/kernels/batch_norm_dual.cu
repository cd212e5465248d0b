// Two batch normalizations and an addition in one launch: y = relu(scale * x + bias + the same of the other), and eight
// bits for each group where the ReLU was open. What is of the other is rounded to the storage dtype first. Statistics
// of either may come from sums.
//
// Macro: RELU, 0 or 1, whether there is one.

#include "batch_norm_rows.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 2) batch_norm_dual_apply(
    u64 x, u64 x_other, u64 y, u64 mask, TILE, NORMALIZATION(), NORMALIZATION(_other), long long backwards) {
    constexpr int ROWS = ROWS_AT_ONCE<2>;
    Tile tile(TILE_GIVEN, backwards);
    __shared__ TileStatistics of_sums[2];
    if (kind == SUMS) of_sums[0].finish(BATCH_SUMS_GIVEN(, rows), tile, lanes, channels);
    if (kind_other == SUMS) of_sums[1].finish(BATCH_SUMS_GIVEN(_other, rows), tile, lanes, channels);
    if (tile.left <= 0) return;
    const Normalization one = NORMALIZATION_GIVEN(), other = NORMALIZATION_GIVEN(_other);
    float scale[GROUP], bias[GROUP], scale_other[GROUP], bias_other[GROUP];
    one.affine(tile, scale, bias, &of_sums[0], threadIdx.x % lanes);
    other.affine(tile, scale_other, bias_other, &of_sums[1], threadIdx.x % lanes);
    each<ROWS>(tile, [&](const auto& some) {
        Raw values[ROWS], others[ROWS];
        load_rows(x, some, tile, channels, values);
        load_rows(x_other, some, tile, channels, others);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            float value[GROUP], add[GROUP];
            widen(values[r], value);
            widen(others[r], add);
#pragma unroll
            for (int k = 0; k < GROUP; ++k) add[k] = scale_other[k] * add[k] + bias_other[k];
            narrow(add, others[r]);
            widen(others[r], add);
            u32 bits = 0;
#pragma unroll
            for (int k = 0; k < GROUP; ++k) {
                value[k] = scale[k] * value[k] + bias[k] + add[k];
                if constexpr (RELU) {
                    bits |= value[k] > 0.0f ? 1u << k : 0u;
                    value[k] = value[k] <= 0.0f ? 0.0f : value[k];  // NaN stays
                }
            }
            narrow(value, values[r]);
            store_raw(y, some.at(r) * channels + tile.channel, tile, values[r]);
            if constexpr (RELU) reinterpret_cast<u8*>(mask)[some.at(r) * tile.groups + tile.channel / GROUP] = bits;
        }
    });
}

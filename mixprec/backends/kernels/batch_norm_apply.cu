// The pass of a batch normalization that writes: y = relu(factor * (scale * x + bias) + add), and eight bits for each group
// where it was open. The factor is one for each image of `image_rows` rows. Statistics that come from sums are finished
// here: `mean` and `spread` are then where to write them.
//
// Macros, each 0 or 1: ADD, RELU, MASK, FACTORS, what of that there is.

#include "batch_norm_rows.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 2) batch_norm_apply(
    u64 x, u64 add, u64 y, u64 mask, TILE, NORMALIZATION(), long long backwards, const float* factors,
    long long image_rows) {
    constexpr int ROWS = ROWS_AT_ONCE<1 + ADD>;
    Tile tile(TILE_GIVEN, backwards);
    __shared__ TileStatistics of_sums;
    if (kind == SUMS) of_sums.finish(BATCH_SUMS_GIVEN(, rows), tile, lanes, channels);
    if (tile.left <= 0) return;
    const Normalization normalization = NORMALIZATION_GIVEN();
    float scale[GROUP], bias[GROUP];
    normalization.affine(tile, scale, bias, &of_sums, threadIdx.x % lanes);
    each<ROWS>(tile, [&](const auto& some) {
        Raw values[ROWS], others[ROWS];
        float of_rows[ROWS];  // before the loop, whose loads would wait for them
        if constexpr (FACTORS) {
#pragma unroll
            for (int r = 0; r < ROWS; ++r) of_rows[r] = factor_of(factors, some.at(r), image_rows);
        }
        load_rows(x, some, tile, channels, values);
        if constexpr (ADD) load_rows(add, some, tile, channels, others);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            float value[GROUP], other[GROUP];
            widen(values[r], value);
            if constexpr (ADD) widen(others[r], other);
            u32 bits = 0;
#pragma unroll
            for (int k = 0; k < GROUP; ++k) {
                value[k] = scale[k] * value[k] + bias[k];
                if constexpr (FACTORS) value[k] *= of_rows[r];
                if constexpr (ADD) value[k] += other[k];
                if constexpr (MASK) bits |= value[k] > 0.0f ? 1u << k : 0u;
                if constexpr (RELU) value[k] = value[k] <= 0.0f ? 0.0f : value[k];  // NaN stays
            }
            narrow(value, values[r]);
            store_raw(y, some.at(r) * channels + tile.channel, tile, values[r]);
            if constexpr (MASK) reinterpret_cast<u8*>(mask)[some.at(r) * tile.groups + tile.channel / GROUP] = bits;
        }
    });
}

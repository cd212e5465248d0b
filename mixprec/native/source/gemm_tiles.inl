// Products of pairs by the matrix unit: 2 x 2 tiles of the result stay in its registers while the sum runs. Panels, as
// they are packed for vectors, have the layout of its tiles.
#pragma once
#include "tiles.h"

namespace native {
namespace INSTRUCTIONS {

constexpr int ROWS = 32, COLUMNS = 32, UNIT = 16;     // UNIT: pairs in a row of a tile
constexpr long ROOM = 192 << 10;                      // operands of a block: these processors have 2 MB per core
constexpr long GRADIENT_STEP = DEPTH + 16;            // from row to row: an odd number of cache lines
constexpr long GRADIENT_TILE = GRADIENT_STEP * ROWS;  // operands of a packed tile
constexpr long MOST_TILES = 8;                        // of a task of the gradient of filters

// During a task the registers are configured. They are released after it: the system has 8 KB less to save.
struct Tiles {
    Tiles() { tile_configure(); }
    ~Tiles() { tile_release(); }
    Tiles(const Tiles &) = delete;
};

// out (rows, COLUMNS) = [out +] left @ b (depth, COLUMNS). It reads and writes 16 or 32 rows; what is in those from
// `rows` on does not matter. TRANSPOSED makes no difference, as pack_gradient writes rows here.
template <bool TRANSPOSED>
inline void multiply(long rows, long columns, const Left<Pair> &left, const Pair *b, float *out, bool adds) {
    constexpr long OF_B = COLUMNS * sizeof(Pair), OF_OUT = COLUMNS * sizeof(float);
    const long of_left = left.step * sizeof(Pair), below = 16 * left.step;
    const bool is_tall = rows > 16, is_wide = columns > 16;
    float *under = out + 16 * COLUMNS;
    if (adds) {
        tile_load<0>(out, OF_OUT), tile_load<1>(out + 16, OF_OUT);
        tile_load<2>(under, OF_OUT), tile_load<3>(under + 16, OF_OUT);
    } else {
        tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
    }
    left.for_each_tap([&](const Pair *a) {
        for (long d = 0; d < left.depth; d += UNIT, b += UNIT * COLUMNS) {
            tile_load<4>(a + d, of_left);
            tile_load<6>(b, OF_B);
            tile_multiply<0, 4, 6>();
            if (is_wide) {
                tile_load<7>(b + 16, OF_B);
                tile_multiply<1, 4, 7>();
            }
            if (is_tall) {
                tile_load<5>(a + below + d, of_left);
                tile_multiply<2, 5, 6>();
                if (is_wide) tile_multiply<3, 5, 7>();
            }
        }
    });
    tile_store<0>(out, OF_OUT), tile_store<1>(out + 16, OF_OUT);
    if (is_tall) tile_store<2>(under, OF_OUT), tile_store<3>(under + 16, OF_OUT);
}

template <class Operand>
inline Left<Operand> gradient_tile(const Operand *start, long depth) {
    return {start, GRADIENT_STEP, depth};
}

// Writes (pixels, filters) from `gradient` on as tiles (ROWS, pairs), GRADIENT_TILE pairs after each other, in full
// steps of the kernel.
inline void pack_gradient(const Bfloat *gradient, long step, long pixels, long filters, Pair *out) {
    for (long p = 0; p < pixels; p += 2 * UNIT, out += UNIT)
        for (long k = 0; k < filters; k += LANES) {
            alignas(64) float pairs[UNIT * LANES];
            long count = filters - k < LANES ? filters - k : LANES;
            for (long i = 0; i < UNIT; ++i) {
                const Bfloat *row = gradient + (p + 2 * i) * step + k;
                const long left = pixels - p - 2 * i;
                store(pairs + i * LANES,
                      left > 0 ? operands_of(row, left > 1 ? row + step : nullptr, count, Pair()) : spread(0.0f));
            }
            auto *to = reinterpret_cast<float *>(out + k * GRADIENT_STEP);
            for (int i = 0; i < UNIT; i += 8)
                for (int j = 0; j < LANES; j += 8)
                    transpose_8(pairs + i * LANES + j, LANES, to + j * GRADIENT_STEP + i, GRADIENT_STEP);
        }
}

}  // namespace INSTRUCTIONS
}  // namespace native

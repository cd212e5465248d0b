// Products of small matrices in float32: a tile of the result stays in registers while the sum runs.
#pragma once
#include "vector.h"

namespace native {
namespace INSTRUCTIONS {

// The largest tile: as many registers as there are, but for a row of the right matrix and an element of the left one.
constexpr int ROWS = LANES == 16 ? 14 : 6, COLUMNS = 2 * LANES;

// out (rows, COLUMNS) = a (rows, depth) @ b (depth, COLUMNS). Of b only WIDTH vectors are used.
// PACKED: element (i, d) of a is a[d * ROWS + i], otherwise a[i * step + d].
template <bool PACKED, int COUNT, int WIDTH>
void tile(const float *a, long step, const float *b, long depth, float *out) {
    constexpr int THIRDS = (COUNT + 2) / 3;
    const float *rows[THIRDS];  // of each third row: the two below are reached with the steps an address can have
    for (int i = 0; i < THIRDS; ++i) rows[i] = a + 3 * i * (PACKED ? 1 : step);
    Vector sums[COUNT][WIDTH];
#pragma GCC unroll 16
    for (int i = 0; i < COUNT; ++i)
#pragma GCC unroll 2
        for (int j = 0; j < WIDTH; ++j) sums[i][j] = spread(0);
    for (long d = 0; d < depth; ++d) {
        Vector right[WIDTH];
#pragma GCC unroll 2
        for (int j = 0; j < WIDTH; ++j) right[j] = load(b + j * LANES);
#pragma GCC unroll 16
        for (int i = 0; i < COUNT; ++i) {
            Vector left = spread(PACKED ? a[i] : rows[i / 3][d + i % 3 * step]);
#pragma GCC unroll 2
            for (int j = 0; j < WIDTH; ++j) sums[i][j] = fused(left, right[j], sums[i][j]);
        }
        b += COLUMNS;
        if (PACKED) a += ROWS;
    }
#pragma GCC unroll 16
    for (int i = 0; i < COUNT; ++i)
#pragma GCC unroll 2
        for (int j = 0; j < WIDTH; ++j) store(out + i * COLUMNS + j * LANES, sums[i][j]);
}

// The same for any number of rows up to ROWS, and of columns up to COLUMNS; b has zeros beyond those.
template <bool PACKED, int COUNT = ROWS>
void multiply(long rows, long columns, const float *a, long step, const float *b, long depth, float *out) {
    if (rows == COUNT) {
        if (columns > LANES)
            tile<PACKED, COUNT, 2>(a, step, b, depth, out);
        else
            tile<PACKED, COUNT, 1>(a, step, b, depth, out);
    } else if constexpr (COUNT > 1) {
        multiply<PACKED, COUNT - 1>(rows, columns, a, step, b, depth, out);
    }
}

template <class Stored>
inline void widen_n(const Stored *in, float *out, long count) {
    vectors(0, count, [&](long i, long some) { store_n(out + i, load_n(in + i, some), some); });
}

inline void zero_n(float *out, long count) {
    vectors(0, count, [&](long i, long some) { store_n(out + i, spread(0), some); });
}

// Writes the transposed of (8, 8) floats with a distance of in_step from row to row.
inline void transpose_8(const float *in, long in_step, float *out, long out_step) {
    __m256 rows[8], pairs[8], fours[8];
    for (int i = 0; i < 8; ++i) rows[i] = _mm256_loadu_ps(in + i * in_step);
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; ++j) {
            fours[i + 2 * j] = _mm256_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0x44);
            fours[i + 2 * j + 1] = _mm256_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0xee);
        }
    for (int i = 0; i < 4; ++i) {
        _mm256_storeu_ps(out + i * out_step, _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20));
        _mm256_storeu_ps(out + (i + 4) * out_step, _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31));
    }
}

// Writes rows (columns, depth) with a distance of step as a panel (depth, COLUMNS), with zeros beyond the columns.
template <class Stored>
void pack_transposed(const Stored *in, long step, long columns, long depth, float *panel) {
    constexpr int PART = 64;
    alignas(64) float part[COLUMNS * PART] = {};
    for (long start = 0; start < depth; start += PART) {
        long count = depth - start < PART ? depth - start : PART;
        for (long i = 0; i < columns; ++i) widen_n(in + i * step + start, part + i * PART, count);
        float *out = panel + start * COLUMNS;
        long d = 0;
        for (; d + 8 <= count; d += 8)
            for (int i = 0; i < COLUMNS; i += 8) transpose_8(part + i * PART + d, PART, out + d * COLUMNS + i, COLUMNS);
        for (; d < count; ++d)
            for (int i = 0; i < COLUMNS; ++i) out[d * COLUMNS + i] = part[i * PART + d];
    }
}

}  // namespace INSTRUCTIONS
}  // namespace native

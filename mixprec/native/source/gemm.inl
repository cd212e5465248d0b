// Products of small matrices: a tile of the result, in float32, stays in registers while the sum runs.
#pragma once
#include "operands.h"

namespace native {
namespace INSTRUCTIONS {

// The largest tile: as many registers as there are, but for a row of the right matrix and an element of the left one.
constexpr int ROWS = LANES == 16 ? 14 : 6, COLUMNS = 2 * LANES;

// out (rows, COLUMNS) = a (rows, depth) @ b (depth, COLUMNS); depth and step count operands. Of b only WIDTH vectors
// are used. PACKED: element (i, d) of a is a[d * ROWS + i], otherwise a[i * step + d]; and out += the product.
template <bool PACKED, int COUNT, int WIDTH, class Operand>
void tile(const Operand *a, long step, const Operand *b, long depth, float *out) {
    constexpr int THIRDS = (COUNT + 2) / 3;
    // Of each third row. An address of x86 is a base, and an index times 1, 2, 4 or 8: from one base the next two rows
    // are reached with `step` as the index. More bases would take registers, and other multiples an addition.
    const Operand *rows[THIRDS];
    for (int i = 0; i < THIRDS; ++i) rows[i] = a + 3 * i * (PACKED ? 1 : step);
    Vector sums[COUNT][WIDTH];
#pragma GCC unroll 16
    for (int i = 0; i < COUNT; ++i)
#pragma GCC unroll 2
        for (int j = 0; j < WIDTH; ++j) sums[i][j] = spread(0.0f);
    for (long d = 0; d < depth; ++d) {
        Vector right[WIDTH];
#pragma GCC unroll 2
        for (int j = 0; j < WIDTH; ++j) right[j] = load(b + j * LANES);
#pragma GCC unroll 16
        for (int i = 0; i < COUNT; ++i) {
            Vector left = spread(PACKED ? a[i] : rows[i / 3][d + i % 3 * step]);
#pragma GCC unroll 2
            for (int j = 0; j < WIDTH; ++j) sums[i][j] = sum_of_products(left, right[j], sums[i][j], Operand());
        }
        b += COLUMNS;
        if (PACKED) a += ROWS;
    }
#pragma GCC unroll 16
    for (int i = 0; i < COUNT; ++i)
#pragma GCC unroll 2
        for (int j = 0; j < WIDTH; ++j) {
            float *to = out + i * COLUMNS + j * LANES;
            store(to, PACKED ? add(load(to), sums[i][j]) : sums[i][j]);
        }
}

// The same for any number of rows up to ROWS, and of columns up to COLUMNS; b has zeros beyond those.
template <bool PACKED, int COUNT = ROWS, class Operand>
void multiply(long rows, long columns, const Operand *a, long step, const Operand *b, long depth, float *out) {
    if (rows == COUNT) {
        if (columns > LANES)
            tile<PACKED, COUNT, 2>(a, step, b, depth, out);
        else
            tile<PACKED, COUNT, 1>(a, step, b, depth, out);
    } else if constexpr (COUNT > 1) {
        multiply<PACKED, COUNT - 1>(rows, columns, a, step, b, depth, out);
    }
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

// Writes rows (columns, numbers) with a distance of step as a panel (operands, COLUMNS), with zeros beyond the columns.
template <class Stored, class Operand>
void pack_transposed(const Stored *in, long step, long columns, long numbers, Operand *panel) {
    typedef typename Numbers<Operand>::Number Number;
    constexpr int PART = 64, EACH = Numbers<Operand>::COUNT;
    alignas(64) Operand part[COLUMNS * PART] = {};
    for (long start = 0; start < numbers; start += PART * EACH) {
        long some = numbers - start < PART * EACH ? numbers - start : PART * EACH, count = (some + EACH - 1) / EACH;
        for (long i = 0; i < columns; ++i) {
            auto *row = reinterpret_cast<Number *>(part + i * PART);
            pack_n(in + i * step + start, row, some);
            if (some < count * EACH) zero_n(row + some, count * EACH - some);
        }
        Operand *out = panel + start / EACH * COLUMNS;
        long d = 0;
        for (; d + 8 <= count; d += 8)
            for (int i = 0; i < COLUMNS; i += 8)
                transpose_8(reinterpret_cast<const float *>(part + i * PART + d), PART,
                            reinterpret_cast<float *>(out + d * COLUMNS + i), COLUMNS);
        for (; d < count; ++d)
            for (int i = 0; i < COLUMNS; ++i) out[d * COLUMNS + i] = part[i * PART + d];
    }
}

}  // namespace INSTRUCTIONS
}  // namespace native

// Products of small matrices, in float32: by vectors, or by the processor's matrix unit where TILES is defined. And how
// the right matrix is packed, in panels (operands, COLUMNS).
#pragma once
#include "operands.h"

namespace native {
namespace INSTRUCTIONS {

// The left matrix of a product. A row consists of taps[0] x taps[1] parts of `depth` operands each; `distances` lead
// from part to part, and `step` from row to row. Rows may overlap: they can be shifted views of one image.
template <class Operand>
struct Left {
    const Operand *start;
    long step, depth;
    long taps[2] = {1, 1}, distances[2] = {};

    // Calls body(start) for the part of each tap, of the first row.
    template <class Body>
    INLINE void for_each_tap(const Body &body) const {
        for (long i = 0; i < taps[0]; ++i)
            for (long j = 0; j < taps[1]; ++j) body(start + i * distances[0] + j * distances[1]);
    }
};

constexpr long DEPTH = 160;  // operands of a block of pixels, over which the gradient of filters is summed up

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

}  // namespace INSTRUCTIONS
}  // namespace native

#ifdef TILES
#include "gemm_tiles.inl"
#else
#include "gemm_vectors.inl"
#endif

namespace native {
namespace INSTRUCTIONS {

// How many operands have so many numbers, in full steps of the kernel.
template <class Operand>
inline long operands(long numbers) {
    constexpr long STEP = UNIT * Numbers<Operand>::COUNT;
    return (numbers + STEP - 1) / STEP * UNIT;
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

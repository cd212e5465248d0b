// Products by vectors: a tile of the result stays in registers while the sum runs.
#pragma once

namespace native {
namespace INSTRUCTIONS {

// The largest tile: as many registers as there are, without a row of the right matrix and an element of the left one.
constexpr int ROWS = LANES == 16 ? 14 : 6, COLUMNS = 2 * LANES, UNIT = 1;
constexpr long ROOM = 96 << 10;  // operands of a block: with a panel of filters they fit the second-level cache
constexpr long GRADIENT_TILE = DEPTH * ROWS + LANES;  // operands of a packed tile: its last row is written as a vector
constexpr long MOST_TILES = 18;                       // of a task of the gradient of filters

struct Tiles {  // vectors need no preparation
    Tiles() {}
};

// out (rows, COLUMNS) = [out +] left @ b (depth, COLUMNS). Of b only WIDTH vectors are used. TRANSPOSED: element (i, d)
// of the left matrix is start[d * ROWS + i], as pack_gradient writes it.
template <bool TRANSPOSED, int COUNT, int WIDTH, class Operand>
void tile(const Left<Operand> &left, const Operand *b, float *out, bool adds) {
    constexpr int THIRDS = (COUNT + 2) / 3;
    const long step = TRANSPOSED ? 1 : left.step, depth = left.depth;
    Vector sums[COUNT][WIDTH];
#pragma GCC unroll 16
    for (int i = 0; i < COUNT; ++i)
#pragma GCC unroll 2
        for (int j = 0; j < WIDTH; ++j) sums[i][j] = spread(0.0f);
    auto add_tap = [&](const Operand *a) {
        // Of each third row. An address of x86 is a base, and an index times 1, 2, 4 or 8: from one base the next two
        // rows are reached with `step` as the index. More bases would take registers, and other multiples an addition.
        const Operand *rows[THIRDS];
        for (int i = 0; i < THIRDS; ++i) rows[i] = a + 3 * i * step;
        for (long d = 0; d < depth; ++d) {
            Vector right[WIDTH];
#pragma GCC unroll 2
            for (int j = 0; j < WIDTH; ++j) right[j] = load(b + j * LANES);
#pragma GCC unroll 16
            for (int i = 0; i < COUNT; ++i) {
                Vector element = spread(TRANSPOSED ? a[i] : rows[i / 3][d + i % 3 * step]);
#pragma GCC unroll 2
                for (int j = 0; j < WIDTH; ++j) sums[i][j] = sum_of_products(element, right[j], sums[i][j], Operand());
            }
            b += COLUMNS;
            if (TRANSPOSED) a += ROWS;
        }
    };
    if constexpr (TRANSPOSED) add_tap(left.start);
    else left.for_each_tap(add_tap);
#pragma GCC unroll 16
    for (int i = 0; i < COUNT; ++i)
#pragma GCC unroll 2
        for (int j = 0; j < WIDTH; ++j) {
            float *to = out + i * COLUMNS + j * LANES;
            store(to, adds ? add(load(to), sums[i][j]) : sums[i][j]);
        }
}

// The same for any number of rows up to ROWS, and of columns up to COLUMNS; b has zeros beyond those.
template <bool TRANSPOSED, int COUNT = ROWS, class Operand>
void multiply(long rows, long columns, const Left<Operand> &left, const Operand *b, float *out, bool adds) {
    if (rows == COUNT) {
        if (columns > LANES)
            tile<TRANSPOSED, COUNT, 2>(left, b, out, adds);
        else
            tile<TRANSPOSED, COUNT, 1>(left, b, out, adds);
    } else if constexpr (COUNT > 1) {
        multiply<TRANSPOSED, COUNT - 1>(rows, columns, left, b, out, adds);
    }
}

template <class Operand>
inline Left<Operand> gradient_tile(const Operand *start, long depth) {
    return {start, ROWS, depth};
}

// Writes (pixels, filters) from `gradient` on as tiles (operands, ROWS), GRADIENT_TILE operands after each other.
template <class Stored, class Operand>
inline void pack_gradient(const Stored *gradient, long step, long pixels, long filters, Operand *out) {
    for (long p = 0; p < pixels; p += Numbers<Operand>::COUNT, out += ROWS) {
        const Stored *row = gradient + p * step, *next = p + 1 < pixels ? row + step : nullptr;
        auto *to = reinterpret_cast<float *>(out);
        for (long k = 0; k < filters; k += ROWS, to += GRADIENT_TILE) {
            long count = filters - k < LANES ? filters - k : LANES;
            store(to, operands_of(row + k, next ? next + k : nullptr, count, Operand()));
        }
    }
}

}  // namespace INSTRUCTIONS
}  // namespace native

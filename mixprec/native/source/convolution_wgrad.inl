// The gradient of a convolution with respect to its filters, see convolution.h: the product of the gradient's
// transposed and of windows, a sum over pixels. It is taken in float32 in blocks of pixels, whose sums are added up.
#include "pool.h"
#include "scratch.h"
#include "windows.inl"

namespace native {
namespace INSTRUCTIONS {

constexpr long DEPTH = 256;                                // operands of a block
constexpr long MOST_FILTERS = 18 * ROWS, MOST_PANELS = 8;  // of a task

// Writes (pixels, filters) from `gradient` on as (operands, ROWS). Beyond the end there is room for a vector.
template <class Stored, class Operand>
inline void pack_gradient(const Stored *gradient, long step, long pixels, long filters, Operand *out) {
    long count = filters < LANES ? filters : LANES;
    for (long p = 0; p < pixels; p += Numbers<Operand>::COUNT, out += ROWS) {
        const Stored *row = gradient + p * step, *next = p + 1 < pixels ? row + step : nullptr;
        store(reinterpret_cast<float *>(out), operands_of(row, next, count, Operand()));
    }
}

template <class Stored>
bool wgrad_of(const Convolution &of, const Stored *x, const Stored *dy, Stored *dw) {
    typedef typename OperandOf<Stored>::Operand Operand;
    typedef typename Numbers<Operand>::Number Number;
    constexpr int EACH = Numbers<Operand>::COUNT;
    constexpr long PIXELS = DEPTH * EACH;
    Windows windows = windows_of_input(of);
    long columns = windows.depth(), positions = windows.positions(), filters = of.filters / of.groups;
    long wide = (columns + COLUMNS - 1) / COLUMNS, high = (filters + ROWS - 1) / ROWS;
    long panels = clamp(wide, 1, MOST_PANELS), tiles = clamp(high, 1, MOST_FILTERS / ROWS);
    auto parts = [](long all, long some) { return (all + some - 1) / some; };
    if (threads() > 1) {
        long wanted = parts(4 * threads(), of.groups);
        while (panels > 1 && parts(wide, panels) * parts(high, tiles) < wanted) panels = (panels + 1) / 2;
        while (tiles > 1 && parts(wide, panels) * parts(high, tiles) < wanted) tiles = (tiles + 1) / 2;
    }
    long across = parts(wide, panels), down = parts(high, tiles);
    bool failed = false;
    parallel(of.groups * across * down, [&](long number) {
        long group = number / (across * down), first_panel = number % across * panels;
        long first_filter = number / across % down * tiles * ROWS;
        long some_panels = clamp(wide - first_panel, 0, panels), some = clamp(filters - first_filter, 0, tiles * ROWS);
        long first_column = first_panel * COLUMNS, width = panels * COLUMNS;
        const Stored *input = x + group * of.channels, *gradient = dy + group * filters + first_filter;
        float *totals = scratch(DEPTH * width + tiles * ROWS * width + DEPTH * ROWS + LANES);
        if (!totals) {
            __atomic_store_n(&failed, true, __ATOMIC_RELAXED);
            return;
        }
        auto *right = reinterpret_cast<Operand *>(totals + tiles * ROWS * width), *left = right + DEPTH * width;
        zero_n(totals, tiles * ROWS * width);
        alignas(64) Number seen[EACH][MOST_PANELS * COLUMNS] = {};
        long count = clamp(columns - first_column, 0, width);
        Place place(windows, first_column);
        for (long start = 0; start < positions; start += PIXELS) {
            long pixels = clamp(positions - start, 0, PIXELS);
            Position at(windows, start);
            for (long p = 0; p < pixels; p += EACH) {
                for (Number *row : seen) {
                    bool is_there = row == seen[0] || p + 1 < pixels;
                    if (is_there) write_window(windows, input, at, place, count, row);
                    else zero_n(row, count);
                    at.next(windows);
                }
                Operand *out = right + p / EACH * COLUMNS;
                for (long j = 0; j < some_panels * COLUMNS; j += COLUMNS, out += DEPTH * COLUMNS)
                    pack_rows(seen[0] + j, seen[EACH - 1] + j, out, COLUMNS);
            }
            for (long row = 0; row < some; row += ROWS) {
                pack_gradient(gradient + start * of.filters + row, of.filters, pixels, some - row, left);
                long rows = clamp(some - row, 0, ROWS);
                for (long panel = 0; panel < some_panels; ++panel) {
                    alignas(64) float sums[ROWS * COLUMNS];
                    long across = clamp(count - panel * COLUMNS, 0, COLUMNS);
                    multiply<true>(
                        rows, across, left, 0, right + panel * DEPTH * COLUMNS, operands<Operand>(pixels), sums);
                    for (long i = 0; i < rows; ++i) {
                        float *total = totals + (row + i) * width + panel * COLUMNS;
                        vectors(0, across, [&](long j, long some) {
                            Vector sum = load(sums + i * COLUMNS + j);
                            store_n(total + j, add(load_n(total + j, some), sum), some);
                        });
                    }
                }
            }
        }
        for (long row = 0; row < some; ++row) {
            Stored *out = dw + (group * filters + first_filter + row) * columns + first_column;
            vectors(0, count, [&](long j, long some) {
                store_n(out + j, load_n(totals + row * width + j, some), some);
            });
        }
    });
    return !failed;
}

bool wgrad(const Convolution &of, const void *x, const void *dy, void *dw) {
    bool is_done = false;
    of_dtype(of.dtype, [&](auto tag) {
        using Stored = typename decltype(tag)::type;
        is_done = wgrad_of(
            of, static_cast<const Stored *>(x), static_cast<const Stored *>(dy), static_cast<Stored *>(dw));
    });
    return is_done;
}

}  // namespace INSTRUCTIONS
}  // namespace native

// The gradient of a convolution with respect to its filters, see convolution.h: the product of the gradient's
// transposed and of windows, a sum over pixels. It is taken in float32 in blocks of pixels, whose sums are added up.
#include "pool.h"
#include "scratch.h"
#include "windows.inl"

namespace native {
namespace INSTRUCTIONS {

constexpr long DEPTH = 160;                              // operands of a block
constexpr long MOST_TILES = 18, MOST_PANELS = 8;         // of a task: ROWS filters, and COLUMNS of their elements
constexpr long TASKS = 16;                               // at least, if that does not cost much
constexpr long WINDOW = MOST_PANELS * COLUMNS + LANES;   // numbers there is room for

// How the work is shared out. It depends on the shape only, as the order of the sums does.
struct Shares {
    long panels, tiles;              // of all columns, and of the filters of a group
    long across, down, groups;       // tasks
    long slices;                     // of the pixels, each with tasks of its own; their results are added up

    Shares(const Convolution &of, long columns, long positions, long pixels)
        : panels(parts(columns, COLUMNS)), tiles(parts(of.filters / of.groups, ROWS)), groups(of.groups) {
        long some_panels = clamp(panels, 1, MOST_PANELS), some_tiles = clamp(tiles, 1, MOST_TILES);
        auto share = [&] {
            across = parts(panels, some_panels), down = parts(tiles, some_tiles);
            return groups * across * down;
        };
        slices = clamp(parts(TASKS, share()), 1, clamp(positions / (2 * pixels), 1, TASKS));
        while (some_panels > 2 && share() * slices < TASKS) some_panels = parts(some_panels, 2);
        while (some_tiles > 3 && share() * slices < TASKS) some_tiles = parts(some_tiles, 2);
        share();
    }
    static long parts(long all, long some) { return (all + some - 1) / some; }
};

// Writes (pixels, filters) from `gradient` on as (operands, ROWS). Beyond the end there is room for a vector.
template <class Stored, class Operand>
inline void pack_gradient(const Stored *gradient, long step, long pixels, long filters, Operand *out) {
    long count = filters < LANES ? filters : LANES;
    for (long p = 0; p < pixels; p += Numbers<Operand>::COUNT, out += ROWS) {
        const Stored *row = gradient + p * step, *next = p + 1 < pixels ? row + step : nullptr;
        store(reinterpret_cast<float *>(out), operands_of(row, next, count, Operand()));
    }
}

// Writes `count` columns of the windows of some pixels as panels (operands, COLUMNS), DEPTH operands after each other.
template <class Stored, class Operand>
void pack_windows(const Windows &windows, const Stored *input, long start, long pixels, long first, long count,
                  Operand *out) {
    typedef typename Numbers<Operand>::Number Number;
    constexpr int EACH = Numbers<Operand>::COUNT;
    auto pack = [&](const auto *row, const auto *next, Operand *to) {
        for (long j = 0; j < count; j += COLUMNS, to += DEPTH * COLUMNS) {
            long some = clamp(count - j, 0, COLUMNS);
            if (some < COLUMNS) zero_n(to, COLUMNS);
            pack_rows(row + j, next ? next + j : nullptr, to, some);
        }
    };
    alignas(64) Number seen[EACH][WINDOW];
    bool is_whole = count == windows.depth();
    Place place(windows, first);
    Position at(windows, start);
    for (long p = 0; p < pixels; p += EACH, out += COLUMNS) {
        const Stored *of_pixel[2] = {};
        for (int i = 0; i < EACH && p + i < pixels; ++i, at.next(windows)) {
            if (windows.is_pixel) of_pixel[i] = input + at.source(windows) * windows.source_channels + first;
            else if (windows.is_image && is_whole) write_window_of_image(windows, input, at, seen[i]);
            else write_window(windows, input, at, place, count, seen[i]);
        }
        if (windows.is_pixel) pack(of_pixel[0], of_pixel[1], out);
        else pack(seen[0], EACH > 1 && p + 1 < pixels ? seen[EACH - 1] : nullptr, out);
    }
}

template <class Stored>
inline void copy(const float *in, Stored *out, long count) {
    vectors(0, count, [&](long i, long some) { store_n(out + i, load_n(in + i, some), some); });
}

template <class Stored>
bool wgrad_of(const Convolution &of, const Stored *x, const Stored *dy, Stored *dw) {
    typedef typename OperandOf<Stored>::Operand Operand;
    constexpr long PIXELS = DEPTH * Numbers<Operand>::COUNT;
    Windows windows = windows_of_input(of);
    long columns = windows.depth(), positions = windows.positions(), filters = of.filters / of.groups;
    Shares shares(of, columns, positions, PIXELS);
    long most_panels = Shares::parts(shares.panels, shares.across);
    long most_tiles = Shares::parts(shares.tiles, shares.down), slices = shares.slices;
    float *sums_of_slices = nullptr;  // (slices, K, columns)
    if (slices > 1) {
        sums_of_slices = static_cast<float *>(malloc(slices * of.filters * columns * sizeof(float)));
        if (!sums_of_slices) return false;
    }
    bool failed = false;
    parallel(slices * of.groups * shares.across * shares.down, [&](long number) {
        long a = number % shares.across, d = number / shares.across % shares.down;
        long group = number / shares.across / shares.down % of.groups;
        long slice = number / shares.across / shares.down / of.groups;
        long first_panel = shares.panels * a / shares.across, stop_panel = shares.panels * (a + 1) / shares.across;
        long first_row = shares.tiles * d / shares.down * ROWS, stop_row = shares.tiles * (d + 1) / shares.down * ROWS;
        long some = clamp(filters, 0, stop_row) - first_row, first_filter = group * filters + first_row;
        long first_column = first_panel * COLUMNS, count = clamp(columns, 0, stop_panel * COLUMNS) - first_column;
        // Tiles (ROWS, COLUMNS), those of a panel of columns after each other.
        long of_panel = most_tiles * ROWS * COLUMNS, of_tile = DEPTH * ROWS;
        float *totals = scratch(most_panels * (of_panel + DEPTH * COLUMNS) + most_tiles * of_tile + LANES);
        if (!totals) {
            __atomic_store_n(&failed, true, __ATOMIC_RELAXED);
            return;
        }
        auto *right = reinterpret_cast<Operand *>(totals + most_panels * of_panel);
        auto *left = right + most_panels * DEPTH * COLUMNS;
        zero_n(totals, most_panels * of_panel);
        long stop = positions * (slice + 1) / slices;
        for (long start = positions * slice / slices; start < stop; start += PIXELS) {
            long pixels = clamp(stop - start, 0, PIXELS), depth = operands<Operand>(pixels);
            pack_windows(windows, x + group * of.channels, start, pixels, first_column, count, right);
            const Stored *gradient = dy + start * of.filters + first_filter;
            for (long row = 0; row < some; row += ROWS)
                pack_gradient(gradient + row, of.filters, pixels, some - row, left + row / ROWS * of_tile);
            for (long column = 0; column < count; column += COLUMNS)
                for (long row = 0; row < some; row += ROWS)
                    multiply<true>(
                        clamp(some - row, 0, ROWS), clamp(count - column, 0, COLUMNS), left + row / ROWS * of_tile, 0,
                        right + column * DEPTH, depth, totals + column / COLUMNS * of_panel + row * COLUMNS);
        }
        for (long row = 0; row < some; ++row)
            for (long column = 0; column < count; column += COLUMNS) {
                const float *total = totals + column / COLUMNS * of_panel + row * COLUMNS;
                long across = clamp(count - column, 0, COLUMNS);
                long place = (first_filter + row) * columns + first_column + column;
                if (sums_of_slices) copy(total, sums_of_slices + slice * of.filters * columns + place, across);
                else copy(total, dw + place, across);
            }
    });
    if (sums_of_slices && !failed)
        parallel_parts(of.filters * columns, LEAST, [&](long start, long stop) {
            vectors(start, stop, [&](long i, long some) {
                Vector sum = load_n(sums_of_slices + i, some);
                for (long slice = 1; slice < slices; ++slice)
                    sum = add(sum, load_n(sums_of_slices + slice * of.filters * columns + i, some));
                store_n(dw + i, sum, some);
            });
        });
    free(sums_of_slices);
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

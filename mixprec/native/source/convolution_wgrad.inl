// The gradient of a convolution with respect to its filters, see convolution.h: the product of the gradient's
// transposed and of windows, a sum over pixels. It is taken in float32 in blocks of pixels, whose sums are added up.
#include "pool.h"
#include "scratch.h"
#include "windows.inl"

namespace native {
namespace INSTRUCTIONS {

constexpr long MOST_PANELS = 8;                         // of a task, as MOST_TILES
constexpr long TASKS = 16;                              // at least, if that does not cost much
constexpr long WINDOW = MOST_PANELS * COLUMNS + LANES;  // numbers there is room for

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

// One element of the filter, and its channels from one on: where all columns of a panel are of one element, they are
// read from the input directly.
struct Element {
    long down, across, channel;

    Element() = default;
    Element(const Windows &windows, long column) {
        const Axis &y = windows.axes[0], &x = windows.axes[1];
        long tap = column / windows.channels;
        down = y.offset + tap / x.taps * y.step, across = x.offset + tap % x.taps * x.step;
        channel = column % windows.channels;
    }
    template <class Stored>
    INLINE const Stored *of(const Windows &windows, const Stored *input, Position at, const Stored *zeros) const {
        const Axis &y = windows.axes[0], &x = windows.axes[1];
        long row = at.i * y.stride + down, column = at.j * x.stride + across;
        if (row < 0 || row >= y.source || column < 0 || column >= x.source) return zeros;
        return input + ((at.image * y.source + row) * x.source + column) * windows.source_channels + channel;
    }
};

// Writes `count` columns of the windows of some pixels as panels (operands, COLUMNS), DEPTH operands after each other.
template <class Stored, class Operand>
void pack_windows(const Windows &of_input, const Stored *input, long start, long pixels, long first, long count,
                  Operand *out) {
    typedef typename Numbers<Operand>::Number Number;
    constexpr int EACH = Numbers<Operand>::COUNT;
    const Windows windows = of_input;  // a local copy: the compiler knows that stores do not change it
    const bool is_direct = !windows.is_pixel && windows.channels % COLUMNS == 0, is_whole = count == windows.depth();
    auto pack = [&](const auto *row, const auto *next, Operand *to) {
        for (long j = 0; j < count; j += COLUMNS) {
            long some = clamp(count - j, 0, COLUMNS);
            if (some < COLUMNS) zero_n(to + j * DEPTH, COLUMNS);
            pack_rows(row + j, next ? next + j : nullptr, to + j * DEPTH, some);
        }
    };
    alignas(64) static const Stored zeros[COLUMNS] = {};
    alignas(64) Number seen[EACH][WINDOW];
    Element elements[MOST_PANELS];
    for (long j = 0; is_direct && j < count; j += COLUMNS) elements[j / COLUMNS] = Element(windows, first + j);
    const Place place(windows, first);
    Position at(windows, start);
    long p = 0;
    for (; p < pixels; p += EACH, out += COLUMNS) {
        const bool has_next = EACH > 1 && p + 1 < pixels;
        Position next = at;
        if (has_next) next.next(windows);
        if (is_direct) {
            for (long j = 0; j < count; j += COLUMNS) {
                const Element &element = elements[j / COLUMNS];
                pack_rows(element.of(windows, input, at, zeros),
                          has_next ? element.of(windows, input, next, zeros) : nullptr, out + j * DEPTH, COLUMNS);
            }
        } else if (windows.is_pixel) {
            const Stored *row = input + at.source(windows) * windows.source_channels + first;
            pack(row, has_next ? input + next.source(windows) * windows.source_channels + first : nullptr, out);
        } else {
            for (int i = 0; i <= has_next; ++i) {
                const Position &position = i ? next : at;
                if (windows.is_image && is_whole) write_window_of_image(windows, input, position, seen[i]);
                else write_window(windows, input, position, place, count, seen[i]);
            }
            pack(seen[0], has_next ? seen[EACH - 1] : nullptr, out);
        }
        at = next;
        at.next(windows);
    }
    for (; p / EACH < operands<Operand>(pixels); p += EACH, out += COLUMNS)  // for the last step of the kernel
        for (long j = 0; j < count; j += COLUMNS) zero_n(out + j * DEPTH, COLUMNS);
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
        long of_panel = most_tiles * ROWS * COLUMNS;
        float *totals = scratch(most_panels * (of_panel + DEPTH * COLUMNS) + most_tiles * GRADIENT_TILE);
        if (!totals) {
            __atomic_store_n(&failed, true, __ATOMIC_RELAXED);
            return;
        }
        Tiles tiles;
        auto *right = reinterpret_cast<Operand *>(totals + most_panels * of_panel);
        auto *left = right + most_panels * DEPTH * COLUMNS;
        zero_n(totals, most_panels * of_panel);
        long stop = positions * (slice + 1) / slices;
        for (long start = positions * slice / slices; start < stop; start += PIXELS) {
            long pixels = clamp(stop - start, 0, PIXELS), depth = operands<Operand>(pixels);
            pack_windows(windows, x + group * of.channels, start, pixels, first_column, count, right);
            pack_gradient(dy + start * of.filters + first_filter, of.filters, pixels, some, left);
            for (long column = 0; column < count; column += COLUMNS)
                for (long row = 0; row < some; row += ROWS)
                    multiply<true>(
                        clamp(some - row, 0, ROWS), clamp(count - column, 0, COLUMNS),
                        gradient_tile(left + row / ROWS * GRADIENT_TILE, depth), right + column * DEPTH,
                        totals + column / COLUMNS * of_panel + row * COLUMNS, true);
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

}  // namespace INSTRUCTIONS
}  // namespace native

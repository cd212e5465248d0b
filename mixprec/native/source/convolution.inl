// Forward and backward convolutions with respect to the input, see convolution.h. Both are products of windows, the
// rows of the left matrix, and of filters. The filters are packed once; reader.inl has the windows.
#pragma once
#include <cstdlib>

#include "pool.h"
#include "reader.inl"
#include "scratch.h"

namespace native {
namespace INSTRUCTIONS {

constexpr long FILTERS = 16;  // of a task that packs them for the backward pass

// Operands from a panel to the next: one row more, so that equal rows do not all fall on the same lines of the cache.
inline long panel_step(long depth) { return (depth + 1) * COLUMNS; }

// Writes the zeros of a panel for the last step of the kernel.
template <class Operand>
inline void clear_end(Operand *panel, long numbers, long depth) {
    long whole = (numbers + Numbers<Operand>::COUNT - 1) / Numbers<Operand>::COUNT;
    if (whole < depth) zero_n(panel + whole * COLUMNS, (depth - whole) * COLUMNS);
}

// What becomes of a sum.
struct Store {
    long columns, target_channels;
    const float *bias;
    bool relu;
};

// Writes rows of a tile to pixels of the target; a negative pixel is none.
template <class Stored>
inline void store_tile(const Store &to, const float *tile, long rows, long columns, const long *pixels, long column,
                       Stored *target) {
    for (long i = 0; i < rows; ++i, tile += COLUMNS) {
        if (pixels[i] < 0) continue;
        auto result = [&](long j) {
            Vector v = load(tile + j);
            if (to.bias) v = add(v, load_n(to.bias + column + j, clamp(columns - j, 0, LANES)));
            return to.relu ? relu(v) : v;
        };
        alignas(64) Stored narrow[COLUMNS];
        Stored *row = target + pixels[i] * to.target_channels + column;
        store_two(columns == COLUMNS ? row : narrow, result(0), result(LANES));
        if (columns < COLUMNS) memcpy(row, narrow, columns * sizeof(Stored));
    }
}

// target[position] = window(position) @ panels.
template <class Stored, class Operand>
bool multiply_windows(const Windows &windows, const Stored *source, const Operand *panels, const Store &to,
                      Stored *target) {
    const Reader<Stored, Operand> reader(windows, source);
    const long all = reader.units(), wide = (to.columns + COLUMNS - 1) / COLUMNS, most = reader.most_units();
    const long depth = operands<Operand>(windows.depth());
    long blocks = (all + most - 1) / most;
    const long count_of_threads = threads();  // asked once: another thread may set another number
    blocks = (blocks + count_of_threads - 1) / count_of_threads * count_of_threads;  // equal ones, as many for each
    const long units = (all + blocks - 1) / blocks;
    long groups = count_of_threads == 1 ? 1 : clamp((4 * count_of_threads + blocks - 1) / blocks, 1, wide);
    bool failed = false;
    parallel(blocks * groups, [&](long number) {
        long start = number / groups * units, count = clamp(all - start, 0, units);
        long group = number % groups, first = wide * group / groups, last = wide * (group + 1) / groups;
        if (!count) return;
        const long parts = reader.parts(), of_windows = reader.memory(units), tile = ROWS * COLUMNS;
        // The sums of windows in parts, for each panel those of each piece.
        const long pieces_of_panel = (units + ROWS - 1) / ROWS, all_sums = (last - first) * pieces_of_panel * tile;
        float *memory = scratch(of_windows + (parts > 1 ? all_sums : 0));
        if (!memory) {
            __atomic_store_n(&failed, true, __ATOMIC_RELAXED);
            return;
        }
        Tiles tiles;
        for (long part = 0; part < parts; ++part) {
            Pieces<Operand> pieces;
            reader.read(start, count, part, reinterpret_cast<Operand *>(memory), pieces);
            for (long panel = first; panel < last; ++panel) {
                long column = panel * COLUMNS, columns = clamp(to.columns - column, 0, COLUMNS);
                const Operand *filters = panels + panel * panel_step(depth) + reader.start_of(part) * COLUMNS;
                for (long i = 0; i < pieces.count; ++i) {
                    alignas(64) float of_whole[ROWS * COLUMNS];
                    const long place = (panel - first) * pieces_of_panel + i;
                    float *sums = parts == 1 ? of_whole : memory + of_windows + place * tile;
                    const auto &piece = pieces.all[i];
                    multiply<false>(piece.rows, columns, reader.left(piece.start, part), filters, sums, part > 0);
                    if (part + 1 == parts)
                        store_tile(to, sums, piece.rows, columns, piece.pixels, column, target);
                }
            }
        }
    });
    return !failed;
}

template <class Operand>
Operand *panels_of(long columns, long depth) {
    long panels = (columns + COLUMNS - 1) / COLUMNS;
    return static_cast<Operand *>(aligned_alloc(64, panels * panel_step(depth) * sizeof(Operand)));
}

inline Windows windows_of_input(const Convolution &of) {
    Windows windows = {of.images, {}, of.input_channels, of.channels};
    for (int i = 0; i < 2; ++i)
        windows.axes[i] = {of.out_size[i],    of.size[i],     of.stride[i], -of.pad[i],     of.filter_size[i],
                           of.dilation[i],    0,              1,            of.out_size[i], 0,
                           1};
    windows.finish();
    windows.is_image = of.groups == 1 && of.channels == 3 && of.input_channels > 3;
    return windows;
}

template <class Stored>
bool fprop_of(const Convolution &of, const Stored *x, const Stored *w, const float *bias, bool relu, Stored *y) {
    typedef typename OperandOf<Stored>::Operand Operand;
    Windows windows = windows_of_input(of);
    long numbers = windows.depth(), depth = operands<Operand>(numbers), columns = of.filters / of.groups;
    auto *panels = panels_of<Operand>(columns, depth);
    bool is_done = panels;
    for (long group = 0; group < of.groups && is_done; ++group) {
        long first = group * columns;
        parallel((columns + COLUMNS - 1) / COLUMNS, [&](long panel) {
            long column = panel * COLUMNS;
            pack_transposed(
                w + (first + column) * numbers, numbers, clamp(columns - column, 0, COLUMNS), numbers,
                panels + panel * panel_step(depth));
            clear_end(panels + panel * panel_step(depth), numbers, depth);
        });
        Store to = {columns, of.filters, bias ? bias + first : nullptr, relu};
        is_done = multiply_windows(windows, x + group * of.channels, panels, to, y + first);
    }
    free(panels);
    return is_done;
}

// The positions of one axis of the input which are `phase` modulo the stride. All see the same elements of the filter.
inline Axis axis_of_phase(const Convolution &of, int i, long phase) {
    long stride = of.stride[i], dilation = of.dilation[i], size = of.size[i], first = -1, last = -1, between = 1;
    for (long tap = 0; tap < of.filter_size[i]; ++tap) {
        if ((phase + of.pad[i] - tap * dilation) % stride) continue;
        if (first < 0) first = tap;
        else if (last == first) between = tap - first;
        last = tap;
    }
    long positions = (size - phase + stride - 1) / stride;
    long taps = first < 0 ? 0 : (last - first) / between + 1;
    // The last element sees the first output.
    long offset = taps ? (phase + of.pad[i] - last * dilation) / stride : 0;
    return {positions, of.out_size[i],         1,    offset, taps,
            between * dilation / stride, last, -between, size, phase, stride};
}

// The number of filters of a group is one of operands: a pair has no filters of two pixels.
template <class Operand, class Stored>
bool dgrad_of(const Convolution &of, const Stored *dy, const Stored *w, Stored *dx) {
    constexpr int EACH = Numbers<Operand>::COUNT;
    long filters = of.filters / of.groups, columns = of.channels, taps = of.filter_size[0] * of.filter_size[1];
    auto *panels = panels_of<Operand>(columns, operands<Operand>(filters * taps));
    bool is_done = panels;
    if (of.input_channels > of.channels * of.groups) {
        long pixels = of.images * of.size[0] * of.size[1];
        memset(dx, 0, pixels * of.input_channels * sizeof(Stored));
    }
    long phases[2] = {clamp(of.stride[0], 1, of.size[0]), clamp(of.stride[1], 1, of.size[1])};
    for (long number = 0; number < phases[0] * phases[1] * of.groups && is_done; ++number) {
        long group = number % of.groups, phase = number / of.groups, first = group * filters;
        Windows windows = {of.images, {}, of.filters, filters};
        windows.axes[0] = axis_of_phase(of, 0, phase / phases[1]);
        windows.axes[1] = axis_of_phase(of, 1, phase % phases[1]);
        windows.finish();
        long depth = operands<Operand>(windows.depth());
        const Axis &y = windows.axes[0], &x = windows.axes[1];
        parallel((filters + FILTERS - 1) / FILTERS, [&](long part) {
            long start = part * FILTERS, stop = clamp(filters, start, start + FILTERS);
            for (long i = 0; i < y.taps; ++i)
                for (long j = 0; j < x.taps; ++j)
                    for (long k = start; k < stop; k += EACH) {
                        long r = y.filter + i * y.filter_step, s = x.filter + j * x.filter_step;
                        long place = ((first + k) * of.filter_size[0] + r) * of.filter_size[1] + s;
                        const Stored *row = w + place * columns;
                        const Stored *next = EACH == 1 ? nullptr : row + taps * columns;
                        Operand *out = panels + ((i * x.taps + j) * filters + k) / EACH * COLUMNS;
                        for (long column = 0; column < columns; column += COLUMNS, out += panel_step(depth)) {
                            long count = clamp(columns - column, 0, COLUMNS);
                            pack_rows(row + column, next ? next + column : nullptr, out, count);
                            if (count < COLUMNS) zero_n(out + count, COLUMNS - count);
                        }
                    }
        });
        for (long panel = 0; panel * COLUMNS < columns; ++panel)
            clear_end(panels + panel * panel_step(depth), windows.depth(), depth);
        Store to = {columns, of.input_channels, nullptr, false};
        is_done = multiply_windows(windows, dy + first, panels, to, dx + group * columns);
    }
    free(panels);
    return is_done;
}

}  // namespace INSTRUCTIONS
}  // namespace native

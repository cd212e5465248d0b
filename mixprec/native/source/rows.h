// Arrays (rows, C) with a vector per channel, and sums over their rows; included as vector.h is.
//
// Rows of fewer than 64 channels are taken some at a time as one wide row, so that vectors are full. Sums are taken in
// float32 over SUMMED wide rows, and in float64 beyond that; in an order that depends on the shape only.
#pragma once

#include <cstdlib>

#include "pool.h"
#include "vector.h"

namespace native {
namespace INSTRUCTIONS {

constexpr long CHUNK = 256, SUMMED = 128, TASK = 1 << 16;  // channels, rows, elements: of a task of a sum

struct Rows {
    long channels, repeats, width, size;

    Rows(long rows, long channels)
        : channels(channels),
          repeats(channels <= 16 ? 16 : channels < 64 ? (63 + channels) / channels : 1),
          width(repeats * channels),
          size(rows * channels) {}
};

// A vector per channel, as long as a wide row.
class Tiled {
  public:
    Tiled(const float *values, const Rows &rows) : values_(values) {
        if (rows.repeats == 1 || !values) return;
        for (long i = 0; i < rows.width; ++i) tiled_[i] = values[i % rows.channels];
        values_ = tiled_;
    }
    Tiled(const Tiled &) = delete;
    INLINE Vector operator()(long i, long count) const { return load_n(values_ + i, count); }
    explicit operator bool() const { return values_; }

  private:
    float tiled_[CHUNK];
    const float *values_;
};

// Calls body(offset, i, count) for each vector; i is its place in the wide row.
template <class Body>
void each_of(const Rows &rows, const Body &body) {
    if (!rows.size) return;
    long least = LEAST / rows.width + 1;
    parallel_parts((rows.size + rows.width - 1) / rows.width, least, [&](long start, long stop) {
        const Body mine = body;  // what it holds can be in registers
        for (long offset = start * rows.width; start < stop; ++start, offset += rows.width) {
            long left = rows.size - offset;
            vectors(0, left < rows.width ? left : rows.width,
                    [&](long i, long count) { mine(offset + i, i, count); });
        }
    });
}

struct Two {
    Vector first, second;
};

// Two sums for each channel of some channels, in float64.
struct Sums {
    double first[CHUNK], second[CHUNK];

    void add(const Sums &other, long channels) {
        for (long c = 0; c < channels; ++c) first[c] += other.first[c], second[c] += other.second[c];
    }
};

// A block of rows whose sums are taken in float32.
struct Block {
    long offset, stride, width, size, channels;  // `size` elements from offset, `width` of each `stride`

    // The sums of term(offset, i, count), a Two, over the rows; of all repeats of a channel.
    template <class Term>
    INLINE void sum(const Term &term, Sums &sums) const {
        float first[CHUNK] = {}, second[CHUNK] = {};
        long full = size / width, row = 0;
        auto add_to = [&](long i, Vector a, Vector b) {
            store(first + i, add(load(first + i), a));
            store(second + i, add(load(second + i), b));
        };
        for (long at = offset; row + 4 <= full; row += 4, at += 4 * stride)
            vectors(0, width, [&](long i, long count) {
                Two a = term(at + i, i, count), b = term(at + stride + i, i, count);
                Two c = term(at + 2 * stride + i, i, count), d = term(at + 3 * stride + i, i, count);
                add_to(i, add(add(a.first, b.first), add(c.first, d.first)),
                       add(add(a.second, b.second), add(c.second, d.second)));
            });
        for (; row * width < size; ++row)
            vectors(0, row < full ? width : size - full * width, [&](long i, long count) {
                Two a = term(offset + row * stride + i, i, count);
                add_to(i, a.first, a.second);
            });
        for (long c = 0; c < channels; ++c) sums.first[c] = first[c], sums.second[c] = second[c];
        for (long start = channels; start < width; start += channels)
            for (long c = 0; c < channels; ++c)
                sums.first[c] += first[start + c], sums.second[c] += second[start + c];
    }

    long rows() const { return size / channels; }
};

// Sums over all rows: tasks are parts of the rows, and chunks of the channels. Calls body(first channel, block, result)
// for the blocks of a task, one after the other, with a Result of zeros at first; merge(all, result) for those of
// the parts in their order, and then finish(first channel, channels, all). Returns false where there is no memory.
template <class Result, class Body, class Merge, class Finish>
bool sum_rows(const Rows &rows, const Body &body, const Merge &merge, const Finish &finish) {
    long wide = (rows.size + rows.width - 1) / rows.width, chunks = (rows.width + CHUNK - 1) / CHUNK;
    long step = TASK / (rows.width < CHUNK ? rows.width : CHUNK) / SUMMED * SUMMED;
    if (step < SUMMED) step = SUMMED;
    long parts = wide ? (wide + step - 1) / step : 1;
    auto *results = static_cast<Result *>(calloc(parts * chunks, sizeof(Result)));
    if (!results) return false;
    parallel(parts * chunks, [&](long number) {
        long chunk = number % chunks * CHUNK, start = number / chunks * step;
        long stop = start + step < wide ? start + step : wide;
        long width = rows.width - chunk < CHUNK ? rows.width - chunk : CHUNK;
        for (; start < stop; start += SUMMED) {
            long size = (start + SUMMED < stop ? SUMMED : stop - start) * width, offset = start * rows.width;
            if (rows.repeats > 1 && rows.size - offset < size) size = rows.size - offset;
            long channels = rows.repeats > 1 ? rows.channels : width;
            body(chunk, Block{offset + chunk, rows.width, width, size, channels}, results[number]);
        }
    });
    for (long number = chunks; number < parts * chunks; ++number) merge(results[number % chunks], results[number]);
    for (long chunk = 0; chunk < chunks; ++chunk) {
        long left = rows.channels - chunk * CHUNK;
        finish(chunk * CHUNK, left < CHUNK ? left : CHUNK, results[chunk]);
    }
    free(results);
    return true;
}

}  // namespace INSTRUCTIONS
}  // namespace native

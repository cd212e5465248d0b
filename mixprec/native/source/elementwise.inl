// See elementwise.h.
#include "elementwise.h"
#include "pool.h"
#include "vector.h"

namespace native {
namespace INSTRUCTIONS {

void convert(Dtype of, const void *source, Dtype to, void *target, long size) {
    of_dtype(of, [&](auto source_tag) {
        of_dtype(to, [&](auto target_tag) {
            auto *in = static_cast<const typename decltype(source_tag)::type *>(source);
            auto *out = static_cast<typename decltype(target_tag)::type *>(target);
            parallel_parts(size, LEAST, [&](long start, long stop) {
                vectors(start, stop, [&](long i, long count) __attribute__((always_inline)) {
                    store_n(out + i, load_n(in + i, count), count);
                });
            });
        });
    });
}

void add_arrays(Dtype dtype, const void *a, const void *b, void *sum, long size) {
    of_dtype(dtype, [&](auto tag) {
        using Stored = typename decltype(tag)::type;
        auto *one = static_cast<const Stored *>(a), *other = static_cast<const Stored *>(b);
        auto *out = static_cast<Stored *>(sum);
        parallel_parts(size, LEAST, [&](long start, long stop) {
            vectors(start, stop, [&](long i, long count) __attribute__((always_inline)) {
                store_n(out + i, add(load_n(one + i, count), load_n(other + i, count)), count);
            });
        });
    });
}

// Integers of the width of a dtype, and where its infinity is: above 0 the bits are ordered as the numbers are.
template <class Body>
void of_bits(Dtype dtype, const Body &body) {
    if (dtype == FLOAT)
        body(int32_t(0x7f800000));
    else
        body(int16_t(dtype == HALF ? 0x7c00 : 0x7f80));
}

void relu_of(Dtype dtype, const void *x, void *y, long size) {
    of_bits(dtype, [&](auto infinity) {
        typedef decltype(infinity) Bits;
        constexpr Bits magnitude = Bits(~(1u << (8 * sizeof(Bits) - 1)));
        auto *in = static_cast<const Bits *>(x);
        auto *out = static_cast<Bits *>(y);
        parallel_parts(size, LEAST, [&](long start, long stop) {
            for (long i = start; i < stop; ++i) {
                bool stays = (in[i] > 0) | (Bits(in[i] & magnitude) > infinity);  // NaN does, as its bits are
                out[i] = stays ? in[i] : Bits(0);
            }
        });
    });
}

void relu_backward(Dtype dtype, const void *dy, const void *y, void *dx, long size) {
    of_bits(dtype, [&](auto infinity) {
        typedef decltype(infinity) Bits;
        auto *in = static_cast<const Bits *>(dy), *of = static_cast<const Bits *>(y);
        auto *out = static_cast<Bits *>(dx);
        parallel_parts(size, LEAST, [&](long start, long stop) {
            for (long i = start; i < stop; ++i) {
                Bits value = in[i];
                bool is_open = (of[i] > 0) & (of[i] <= infinity);
                out[i] = Bits(value & -Bits(is_open));
            }
        });
    });
}

void transpose(Dtype of, const void *source, Dtype to, void *target, long count, long rows, long columns, long to_rows,
               long to_columns) {
    constexpr long WIDE = 32, HIGH = 64;  // columns and rows of a tile of the target
    long across = (to_columns + WIDE - 1) / WIDE, down = (to_rows + HIGH - 1) / HIGH;
    auto turn = [&](auto source_tag, auto target_tag) {
        auto *in = static_cast<const typename decltype(source_tag)::type *>(source);
        auto *out = static_cast<typename decltype(target_tag)::type *>(target);
        parallel_parts(count * down * across, LEAST / (WIDE * HIGH), [&](long start, long stop) {
            float tile[WIDE][HIGH + LANES], turned[HIGH * WIDE];
            for (long number = start; number < stop; ++number) {
                long matrix = number / (down * across);
                long j = number / across % down * HIGH, i = number % across * WIDE;
                long height = to_rows - j < HIGH ? to_rows - j : HIGH;
                long width = to_columns - i < WIDE ? to_columns - i : WIDE;
                long filled = rows - i < 0 ? 0 : rows - i < width ? rows - i : width;
                for (long k = 0; k < filled; ++k)
                    vectors(0, height, [&](long l, long n) {
                        store(tile[k] + l, load_n(in + (matrix * rows + i + k) * columns + j + l, n));
                    });
                for (long k = filled; k < width; ++k) memset(tile[k], 0, sizeof(tile[k]));
                for (long l = 0; l < height; ++l)
                    for (long k = 0; k < width; ++k) turned[l * width + k] = tile[k][l];
                bool is_whole = width == to_columns;  // rows of the target follow each other
                long length = is_whole ? height * width : width;
                for (long l = 0; l < (is_whole ? 1 : height); ++l)
                    vectors(0, length, [&](long k, long n) {
                        store_n(out + (matrix * to_rows + j + l) * to_columns + i + k,
                                load_n(turned + l * width + k, n), n);
                    });
            }
        });
    };
    if (of == to && of != FLOAT)
        turn(Tag<Word>(), Tag<Word>());
    else
        of_dtype(of, [&](auto source_tag) { of_dtype(to, [&](auto target_tag) { turn(source_tag, target_tag); }); });
}

}  // namespace INSTRUCTIONS
}  // namespace native

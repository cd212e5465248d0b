// See pooling.h. All go over the positions in a window in the same order: row by row.
#include "pooling.h"
#include "pool.h"
#include "vector.h"

namespace native {
namespace INSTRUCTIONS {

// Calls body(image, row, column) for all pixels of arrays (images, height, width).
template <class Body>
void each_pixel(long images, long height, long width, long channels, const Body &body) {
    long rows = images * height, least = LEAST / (width * channels + 1) + 1, most = 4L * threads();
    long parts = rows / least < most ? rows / least : most;
    if (parts < 1) parts = 1;
    parallel(parts, [&](long part) {
        long stop = (part + 1) * rows / parts;
        for (long row = part * rows / parts; row < stop; ++row)
            for (long column = 0; column < width; ++column) body(row / height, row % height, column);
    });
}

// Calls body(place in the window, pixel of the input) for what the window of an output has of the input.
template <class Body>
inline void each_input(const PoolWindows &w, long image, long row, long column, const Body &body) {
    for (long r = 0, y = row * w.down - w.top; r < w.rows; ++r, ++y) {
        if (y < 0 || y >= w.height) continue;
        for (long s = 0, x = column * w.right - w.left; s < w.columns; ++s, ++x)
            if (x >= 0 && x < w.width) body(r * w.columns + s, (image * w.height + y) * w.width + x);
    }
}

// Calls body(place in the window, pixel of the output) for all windows that have a pixel of the input.
template <class Body>
inline void each_output(const PoolWindows &w, long image, long row, long column, const Body &body) {
    for (long r = 0, y = row + w.top; r < w.rows && y >= 0; ++r, --y) {
        if (y % w.down || y / w.down >= w.out_height) continue;
        for (long s = 0, x = column + w.left; s < w.columns && x >= 0; ++s, --x)
            if (x % w.right == 0 && x / w.right < w.out_width)
                body(r * w.columns + s, (image * w.out_height + y / w.down) * w.out_width + x / w.right);
    }
}

void max_pool(Dtype dtype, const void *x, const PoolWindows &w, void *y, unsigned char *where) {
    of_dtype(dtype, [&](auto tag) {
        using Stored = typename decltype(tag)::type;
        auto *in = static_cast<const Stored *>(x);
        auto *out = static_cast<Stored *>(y);
        each_pixel(w.images, w.out_height, w.out_width, w.channels, [&](long image, long row, long column) {
            long to = ((image * w.out_height + row) * w.out_width + column) * w.channels;
            vectors(0, w.channels, [&](long i, long count) {
                Vector best = spread(-__builtin_inff()), place = spread(0);
                bool is_first = true;
                each_input(w, image, row, column, [&](long number, long pixel) {
                    Vector candidate = load_n(in + pixel * w.channels + i, count);
                    if (is_first) {
                        best = candidate;
                        place = spread(float(number));
                        is_first = false;
                        return;
                    }
                    Mask ahead = beats(candidate, best);
                    best = choose(ahead, candidate, best);
                    place = choose(ahead, spread(float(number)), place);
                });
                store_n(out + to + i, add(best, spread(0)), count);  // a zero without sign, as in NumPy's code
                store_bytes(where + to + i, place, count);
            });
        });
    });
}

void max_pool_backward(Dtype dtype, const void *dy, const unsigned char *where, const PoolWindows &w, void *dx) {
    of_dtype(dtype, [&](auto tag) {
        using Stored = typename decltype(tag)::type;
        auto *in = static_cast<const Stored *>(dy);
        auto *out = static_cast<Stored *>(dx);
        each_pixel(w.images, w.height, w.width, w.channels, [&](long image, long row, long column) {
            long to = ((image * w.height + row) * w.width + column) * w.channels;
            vectors(0, w.channels, [&](long i, long count) {
                Vector sum = spread(0);
                each_output(w, image, row, column, [&](long number, long pixel) {
                    long from = pixel * w.channels + i;
                    Mask chosen = equal(load_bytes(where + from, count), spread(float(number)));
                    sum = add(sum, choose(chosen, load_n(in + from, count), spread(0)));
                });
                store_n(out + to + i, sum, count);
            });
        });
    });
}

void average_pool(Dtype dtype, const void *x, const PoolWindows &w, void *y) {
    Vector size = spread(float(w.rows * w.columns));
    of_dtype(dtype, [&](auto tag) {
        using Stored = typename decltype(tag)::type;
        auto *in = static_cast<const Stored *>(x);
        auto *out = static_cast<Stored *>(y);
        each_pixel(w.images, w.out_height, w.out_width, w.channels, [&](long image, long row, long column) {
            long to = ((image * w.out_height + row) * w.out_width + column) * w.channels;
            vectors(0, w.channels, [&](long i, long count) {
                Vector sum = spread(0);
                each_input(w, image, row, column, [&](long, long pixel) {
                    sum = add(sum, load_n(in + pixel * w.channels + i, count));
                });
                store_n(out + to + i, divide(sum, size), count);
            });
        });
    });
}

void average_pool_backward(Dtype dtype, const void *dy, const PoolWindows &w, void *dx) {
    Vector size = spread(float(w.rows * w.columns));
    of_dtype(dtype, [&](auto tag) {
        using Stored = typename decltype(tag)::type;
        auto *in = static_cast<const Stored *>(dy);
        auto *out = static_cast<Stored *>(dx);
        each_pixel(w.images, w.height, w.width, w.channels, [&](long image, long row, long column) {
            long to = ((image * w.height + row) * w.width + column) * w.channels;
            vectors(0, w.channels, [&](long i, long count) {
                Vector sum = spread(0);
                each_output(w, image, row, column, [&](long, long pixel) {
                    sum = add(sum, divide(load_n(in + pixel * w.channels + i, count), size));
                });
                store_n(out + to + i, sum, count);
            });
        });
    });
}

void global_average_pool(Dtype dtype, const void *x, long images, long pixels, long channels, void *y) {
    constexpr long SOME = 128;  // channels of a task
    long chunks = (channels + SOME - 1) / SOME;
    Vector size = spread(float(pixels));
    of_dtype(dtype, [&](auto tag) {
        using Stored = typename decltype(tag)::type;
        auto *in = static_cast<const Stored *>(x);
        auto *out = static_cast<Stored *>(y);
        parallel(images * chunks, [&](long number) {
            long image = number / chunks, start = number % chunks * SOME;
            long count = channels - start < SOME ? channels - start : SOME;
            float sums[SOME] = {};
            for (long pixel = 0; pixel < pixels; ++pixel) {
                const Stored *from = in + (image * pixels + pixel) * channels + start;
                vectors(0, count, [&](long i, long n) { store(sums + i, add(load(sums + i), load_n(from + i, n))); });
            }
            vectors(0, count, [&](long i, long n) {
                store_n(out + image * channels + start + i, divide(load(sums + i), size), n);
            });
        });
    });
}

}  // namespace INSTRUCTIONS
}  // namespace native

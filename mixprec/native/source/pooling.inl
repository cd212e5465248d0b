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

// What the window of an output has of the input. Calls body(place in the window, pixel).
class Inputs {
  public:
    Inputs(const PoolWindows &w, long image, long row, long column)
        : w_(w), y_(row * w.down - w.top), x_(column * w.right - w.left), image_(image * w.height) {
        first_row_ = y_ < 0 ? -y_ : 0;
        first_column_ = x_ < 0 ? -x_ : 0;
        rows_ = w.height - y_ < w.rows ? w.height - y_ : w.rows;
        columns_ = w.width - x_ < w.columns ? w.width - x_ : w.columns;
    }
    long first() const {  // place, or 0
        return first_row_ < rows_ && first_column_ < columns_ ? first_row_ * w_.columns + first_column_ : 0;
    }
    template <class Body>
    INLINE void each(const Body &body) const {
        for (long r = first_row_; r < rows_; ++r)
            for (long s = first_column_; s < columns_; ++s)
                body(r * w_.columns + s, (image_ + y_ + r) * w_.width + x_ + s);
    }

  private:
    const PoolWindows &w_;
    long y_, x_, image_, first_row_, first_column_, rows_, columns_;
};

// The windows, by their outputs, that have a pixel of the input. Calls body(place in the window, pixel of the output).
class Outputs {
  public:
    Outputs(const PoolWindows &w, long image, long row, long column)
        : w_(w),
          y_((row + w.top) / w.down),
          x_((column + w.left) / w.right),
          first_row_((row + w.top) % w.down),
          first_column_((column + w.left) % w.right),
          image_(image * w.out_height) {}
    template <class Body>
    INLINE void each(const Body &body) const {
        for (long r = first_row_, y = y_; r < w_.rows && y >= 0; r += w_.down, --y) {
            if (y >= w_.out_height) continue;
            for (long s = first_column_, x = x_; s < w_.columns && x >= 0; s += w_.right, --x)
                if (x < w_.out_width) body(r * w_.columns + s, (image_ + y) * w_.out_width + x);
        }
    }

  private:
    const PoolWindows &w_;
    long y_, x_, first_row_, first_column_, image_;
};

void max_pool(Dtype dtype, const void *x, const PoolWindows &w, void *y, unsigned char *where) {
    of_dtype(dtype, [&](auto tag) {
        using Stored = typename decltype(tag)::type;
        auto *in = static_cast<const Stored *>(x);
        auto *out = static_cast<Stored *>(y);
        each_pixel(w.images, w.out_height, w.out_width, w.channels, [&](long image, long row, long column) {
            long to = ((image * w.out_height + row) * w.out_width + column) * w.channels;
            Inputs inputs(w, image, row, column);
            vectors(0, w.channels, [&](long i, long count) {
                Vector best = spread(-__builtin_inff()), place = spread(float(inputs.first()));
                inputs.each([&](long number, long pixel) {
                    Vector candidate = operand(in + pixel * w.channels + i, count);
                    Mask ahead = beats(candidate, best);
                    best = choose(ahead, candidate, best);
                    place = choose(ahead, spread(float(number)), place);
                });
                store_result(out + to + i, add(best, spread(0)), count);  // a zero without sign, as in NumPy's code
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
            Outputs outputs(w, image, row, column);
            vectors(0, w.channels, [&](long i, long count) {
                Vector sum = spread(0);
                outputs.each([&](long number, long pixel) {
                    long from = pixel * w.channels + i;
                    Mask chosen = equal(load_bytes(where + from, count), spread(float(number)));
                    sum = add(sum, choose(chosen, operand(in + from, count), spread(0)));
                });
                store_result(out + to + i, sum, count);
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
            Inputs inputs(w, image, row, column);
            vectors(0, w.channels, [&](long i, long count) {
                Vector sum = spread(0);
                inputs.each([&](long, long pixel) {
                    sum = add(sum, operand(in + pixel * w.channels + i, count));
                });
                store_result(out + to + i, divide(sum, size), count);
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
            Outputs outputs(w, image, row, column);
            vectors(0, w.channels, [&](long i, long count) {
                Vector sum = spread(0);
                outputs.each([&](long, long pixel) {
                    sum = add(sum, divide(operand(in + pixel * w.channels + i, count), size));
                });
                store_result(out + to + i, sum, count);
            });
        });
    });
}

void global_average_pool(Dtype dtype, const void *x, long images, long pixels, long channels, void *y) {
    constexpr long SOME = 128, SUMMED = 128;  // channels of a task; pixels that are summed in float32
    long chunks = (channels + SOME - 1) / SOME;
    Vector size = spread(float(pixels));
    of_dtype(dtype, [&](auto tag) {
        using Stored = typename decltype(tag)::type;
        auto *in = static_cast<const Stored *>(x);
        auto *out = static_cast<Stored *>(y);
        parallel(images * chunks, [&](long number) {
            long image = number / chunks, start = number % chunks * SOME;
            long count = channels - start < SOME ? channels - start : SOME;
            double totals[SOME] = {};
            float sums[SOME] = {};
            for (long pixel = 0; pixel < pixels; ++pixel) {
                if (pixel && pixel % SUMMED == 0)
                    for (long i = 0; i < count; ++i) totals[i] += sums[i], sums[i] = 0;
                const Stored *from = in + (image * pixels + pixel) * channels + start;
                vectors(0, count, [&](long i, long n) { store(sums + i, add(load(sums + i), operand(from + i, n))); });
            }
            if (pixels > SUMMED)
                for (long i = 0; i < count; ++i) sums[i] = float(totals[i] + sums[i]);
            vectors(0, count, [&](long i, long n) {
                store_result(out + image * channels + start + i, divide(load(sums + i), size), n);
            });
        });
    });
}

}  // namespace INSTRUCTIONS
}  // namespace native

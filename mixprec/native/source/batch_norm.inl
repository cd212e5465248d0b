// See batch_norm.h.
#include "batch_norm.h"
#include "rows.h"

namespace native {
namespace INSTRUCTIONS {

constexpr long PROBES = 8;  // wide rows of a block, for its centre

// Of some rows: means, and sums of squares of the deviations from them.
struct Moments {
    double means[CHUNK], squares[CHUNK];
    long rows;

    // As Chan, Golub and LeVeque (1983) do.
    void merge(const double *other_means, const double *other_squares, long other_rows, long channels) {
        double share = double(other_rows) / double(rows + other_rows), weight = double(rows) * share;
        for (long c = 0; c < channels; ++c) {
            double distance = other_means[c] - means[c];
            means[c] += distance * share;
            squares[c] += other_squares[c] + distance * distance * weight;
        }
        rows += other_rows;
    }
};

// Writes a number near the middle of each channel of a block: the mean of some wide rows. Their distance is odd, so
// that they are not all at the border of an image.
template <class Stored>
void find_centre(const Stored *in, const Block &block, float *centre) {
    long full = block.size / block.width, width = full ? block.width : block.size, step = full / PROBES | 1;
    long some = full ? (full + step - 1) / step : 1;
    Vector share = spread(float(block.channels) / float(some * width));
    vectors(0, width, [&](long i, long count) {
        Vector sum = spread(0);
        const Stored *from = in + block.offset + i;
        for (long row = 0; row < some; ++row, from += step * block.stride)
            sum = fused(operand(from, count), share, sum);
        store_n(centre + i, sum, count);
    });
    for (long start = block.channels; start < width; start += block.channels)
        for (long c = 0; c < block.channels; ++c) centre[c] += centre[start + c];
}

bool moments(Dtype dtype, const void *x, long rows, long channels, double *means, double *squares) {
    bool done = false;
    Rows shape(rows, channels);
    of_dtype(dtype, [&](auto tag) {
        auto *in = static_cast<const typename decltype(tag)::type *>(x);
        done = sum_rows<Moments>(
            shape,
            [&](long, const Block &block, Moments &result) {
                // Deviations are those from a centre near the mean: the mean of the blocks before. What its distance
                // from the mean adds to the squares is subtracted below, which costs digits where it is most of them.
                // An outlier among the probes moves the centre by an eighth of its own distance: in SUMMED rows the
                // squares of that are twice the square of the outlier, and the error about thrice that of float32.
                float centre[CHUNK];
                if (result.rows)
                    for (long c = 0; c < block.channels; ++c) centre[c] = float(result.means[c]);
                else
                    find_centre(in, block, centre);
                for (long i = block.channels; i < block.width; ++i) centre[i] = centre[i - block.channels];
                Sums sums;
                block.sum([&](long offset, long i, long count) {
                    Vector deviation = subtract(operand(in + offset, count), operand(centre + i, count));
                    return Two{deviation, multiply(deviation, deviation)};
                }, sums);
                double one_row = 1 / double(block.rows());
                for (long c = 0; c < block.channels; ++c) {
                    double shift = sums.first[c] * one_row;
                    sums.second[c] -= shift * sums.first[c];
                    sums.first[c] = centre[c] + shift;
                }
                result.merge(sums.first, sums.second, block.rows(), block.channels);
            },
            [](Moments &all, const Moments &part) { all.merge(part.means, part.squares, part.rows, CHUNK); },
            [&](long first, long count, const Moments &all) {
                memcpy(means + first, all.means, count * sizeof(double));
                memcpy(squares + first, all.squares, count * sizeof(double));
            });
    });
    return done;
}

void affine(Dtype dtype, const void *x, long rows, long channels, const float *scale, const float *bias,
            const void *added, bool relu_follows, unsigned char *mask, void *y) {
    Rows shape(rows, channels);
    Tiled scales(scale, shape), biases(bias, shape);
    of_dtype(dtype, [&](auto tag) {
        using Stored = typename decltype(tag)::type;
        auto *in = static_cast<const Stored *>(x), *other = static_cast<const Stored *>(added);
        auto *out = static_cast<Stored *>(y);
        each_of(shape, [&](long offset, long i, long count) {
            Vector value = operand(in + offset, count);
            if (scales) value = multiply(value, scales(i, count));
            value = add(value, biases(i, count));
            if (other) value = add(value, operand(other + offset, count));
            if (mask) store_bytes(mask + offset, where_positive(value, spread(1)), count);
            if (relu_follows) value = relu(value);
            store_result(out + offset, value, count);
        });
    });
}

// A gradient in a storage dtype, see batch_norm.h; what it has of PLUS, AGAIN (scale and bias) and MASK.
enum { PLUS = 1, AGAIN = 2, MASK = 4 };
template <class Stored, int HAS>
struct Gradients {
    const Stored *dy, *plus;
    const unsigned char *mask;
    Tiled scale, bias;

    Gradients(const Gradient &gradient, const Rows &rows)
        : dy(static_cast<const Stored *>(gradient.dy)),
          plus(static_cast<const Stored *>(gradient.plus)),
          mask(gradient.mask),
          scale(gradient.scale, rows),
          bias(gradient.bias, rows) {}

    INLINE Vector at(long offset, long i, long count, Vector x) const {
        Vector value = operand(dy + offset, count);
        if constexpr (HAS & PLUS) {
            value = add(value, operand(plus + offset, count));
            if constexpr (sizeof(Stored) == 2) value = widen(narrow(value, (Stored *)nullptr), (Stored *)nullptr);
        }
        if constexpr (HAS & MASK) return where_positive(load_bytes(mask + offset, count), value);
        if constexpr (HAS & AGAIN) return where_positive(add(multiply(x, scale(i, count)), bias(i, count)), value);
        return value;
    }
};

template <int HAS>
struct Has {
    static constexpr int value = HAS;
};

// Calls body with the Tag of the dtype and with what a gradient has.
template <class Body>
void of_gradient(Dtype dtype, const Gradient &gradient, const Body &body) {
    of_dtype(dtype, [&](auto tag) {
        if (gradient.plus && gradient.mask)
            body(tag, Has<PLUS + MASK>());
        else if (gradient.plus && gradient.scale)
            body(tag, Has<PLUS + AGAIN>());
        else if (gradient.plus)
            body(tag, Has<PLUS>());
        else if (gradient.mask)
            body(tag, Has<MASK>());
        else if (gradient.scale)
            body(tag, Has<AGAIN>());
        else
            body(tag, Has<0>());
    });
}

bool gradient_sums(Dtype dtype, const Gradient &given, const void *x, long rows, long channels, const float *mean,
                   void *g, double *products, double *sums) {
    bool done = false;
    Rows shape(rows, channels);
    Tiled means(mean, shape);
    of_gradient(dtype, given, [&](auto tag, auto has) {
        using Stored = typename decltype(tag)::type;
        Gradients<Stored, decltype(has)::value> gradient(given, shape);
        auto *in = static_cast<const Stored *>(x);
        auto *out = static_cast<Stored *>(g);
        done = sum_rows<Sums>(
            shape,
            [&](long first, const Block &block, Sums &result) {
                Sums of_block;
                block.sum([&](long offset, long i, long count) __attribute__((always_inline)) {
                    Vector value = in ? operand(in + offset, count) : spread(0);
                    Vector slope = gradient.at(offset, first + i, count, value);
                    if (out) store_result(out + offset, slope, count);
                    return Two{in ? multiply(slope, subtract(value, means(first + i, count))) : value, slope};
                }, of_block);
                for (long c = 0; c < block.channels; ++c) {
                    result.first[c] += of_block.first[c];
                    result.second[c] += of_block.second[c];
                }
            },
            [](Sums &all, const Sums &part) {
                for (long c = 0; c < CHUNK; ++c) all.first[c] += part.first[c], all.second[c] += part.second[c];
            },
            [&](long first, long count, const Sums &all) {
                memcpy(products + first, all.first, count * sizeof(double));
                memcpy(sums + first, all.second, count * sizeof(double));
            });
    });
    return done;
}

void combine(Dtype dtype, const Gradient &given, const void *x, long rows, long channels, const float *scale,
             const float *mean, const float *slope, const float *offset, void *dx) {
    Rows shape(rows, channels);
    Tiled scales(scale, shape), means(mean, shape), slopes(slope, shape), offsets(offset, shape);
    of_gradient(dtype, given, [&](auto tag, auto has) {
        using Stored = typename decltype(tag)::type;
        Gradients<Stored, decltype(has)::value> gradient(given, shape);
        auto *in = static_cast<const Stored *>(x);
        auto *out = static_cast<Stored *>(dx);
        each_of(shape, [&](long at, long i, long count) {
            Vector value = operand(in + at, count);
            Vector result = multiply(gradient.at(at, i, count, value), scales(i, count));
            if (slopes) {
                Vector deviation = subtract(value, means(i, count));
                result = add(result, add(multiply(deviation, slopes(i, count)), offsets(i, count)));
            }
            store_result(out + at, result, count);
        });
    });
}

}  // namespace INSTRUCTIONS
}  // namespace native

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
            const Added &added, bool relu_follows, unsigned char *mask, void *y) {
    Rows shape(rows, channels);
    Tiled scales(scale, shape), biases(bias, shape), added_scales(added.scale, shape), added_biases(added.bias, shape);
    of_dtype(dtype, [&](auto tag) {
        using Stored = typename decltype(tag)::type;
        auto *in = static_cast<const Stored *>(x), *other = static_cast<const Stored *>(added.x);
        auto *out = static_cast<Stored *>(y);
        auto with = [&](auto term) {  // what is added to a vector
            each_of(shape, [=, &scales, &biases](long offset, long i, long count) __attribute__((always_inline)) {
                Vector value = operand(in + offset, count);
                if (scales) value = multiply(value, scales(i, count));
                value = add(value, biases(i, count));
                if (other) value = add(value, term(offset, i, count));
                if (mask) store_bytes(mask + offset, where_positive(value, spread(1)), count);
                if (relu_follows) value = relu(value);
                store_result(out + offset, value, count);
            });
        };
        if (added_scales)
            with([=, &added_scales, &added_biases](long offset, long i, long count) __attribute__((always_inline)) {
                Vector value = multiply(operand(other + offset, count), added_scales(i, count));
                return rounded(add(value, added_biases(i, count)), (Stored *)nullptr);
            });
        else
            with([=](long offset, long, long count) { return operand(other + offset, count); });
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
            value = rounded(value, (Stored *)nullptr);
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

// Adds the sums of the products of g with x - mean. Inlined, it would make the loops of gradient_sums slower.
template <class Stored>
__attribute__((noinline)) void add_products(
    Block block, long first, const Stored *g, const Stored *in, const Tiled &means, Sums &all) {
    Sums of_block;
    block.sum([&](long offset, long i, long count) __attribute__((always_inline)) {
        Vector slope = operand(g + offset, count), value = operand(in + offset, count);
        return Two{multiply(slope, subtract(value, means(first + i, count))), slope};
    }, of_block);
    all.add(of_block, block.channels);
}

bool gradient_sums(Dtype dtype, const Gradient &given, const Centred &x, const Centred &other, long rows, long channels,
                   void *g, double *products, double *sums) {
    bool done = false;
    Rows shape(rows, channels);
    Tiled means(x.mean, shape), other_means(other.mean, shape);
    struct Result {
        Sums of_x, of_other;
    };
    of_gradient(dtype, given, [&](auto tag, auto has) {
        using Stored = typename decltype(tag)::type;
        Gradients<Stored, decltype(has)::value> gradient(given, shape);
        auto *in = static_cast<const Stored *>(x.x), *other_in = static_cast<const Stored *>(other.x);
        auto *out = static_cast<Stored *>(g);
        done = sum_rows<Result>(
            shape,
            [=, &gradient, &means, &other_means](long first, const Block &block, Result &result) {
                Sums of_block;
                block.sum([=, &gradient, &means](long offset, long i, long count) __attribute__((always_inline)) {
                    Vector value = in ? operand(in + offset, count) : spread(0);
                    Vector slope = gradient.at(offset, first + i, count, value);
                    if (out) store_result(out + offset, slope, count);
                    return Two{in ? multiply(slope, subtract(value, means(first + i, count))) : value, slope};
                }, of_block);
                result.of_x.add(of_block, block.channels);
                if (other_in) add_products(block, first, out, other_in, other_means, result.of_other);
            },
            [&](Result &all, const Result &part) {
                all.of_x.add(part.of_x, CHUNK);
                if (other_in) all.of_other.add(part.of_other, CHUNK);
            },
            [&](long first, long count, const Result &all) {
                memcpy(products + first, all.of_x.first, count * sizeof(double));
                memcpy(sums + first, all.of_x.second, count * sizeof(double));
                if (other_in) memcpy(products + channels + first, all.of_other.first, count * sizeof(double));
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
        each_of(shape, [=, &gradient, &scales, &means, &slopes, &offsets](long at, long i, long count)
                           __attribute__((always_inline)) {
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

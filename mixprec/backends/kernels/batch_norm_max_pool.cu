// Batch normalization, ReLU and max pooling by windows of 3x3 with a stride of 2, in one, and the gradients. What is between
// normalization and pooling is rounded to the storage dtype, as it would be in memory, and is never there.
//
// The rows that a thread goes through are outputs, or, backward, squares of 2x2 inputs, which are in the same windows: the
// first of its rows in two, the second one in the later of these; and so for columns. Padding is at most 1, so that each
// window has something inside. What is outside is read from the nearest place inside: a branch around it would put the
// loads after one another.
//
// Macro: PLUS, whether there is another array to be added to dy.

#include "batch_norm_rows.cuh"

constexpr int CHANNELS = WIDTH > 1 ? 16 / SIZE<STORAGE> : 1;  // of a group, whose loads are under way together
constexpr int PAIR = CHANNELS > 1 ? 2 : 1;                      // channels that are rounded together
constexpr int BITS = SIZE<STORAGE> * 8;
// Blocks of a multiprocessor, as far as registers do.
constexpr int BLOCKS = STORAGE == FLOAT32 ? 2 : 3, BLOCKS_BACKWARD = STORAGE == FLOAT32 && PLUS ? 1 : 2;
constexpr int LAST = 8;  // position in a window

typedef ElementsOf<CHANNELS> Piece;

// Sizes, and how the number of a row is divided by the places in a line, and that by the lines of an image.
#define IMAGES                                                                                                        \
    long long height, long long width, long long out_height, long long out_width, long long pad_y, long long pad_x,   \
        long long lines, long long of_lines, long long line_shift, long long places, long long of_places,             \
        long long place_shift

#define IMAGES_GIVEN                                                                                                  \
    {int(height), int(width), int(out_height), int(out_width), int(pad_y), int(pad_x), int(channels),                 \
     {u32(lines), u32(of_lines), u32(line_shift)}, {u32(places), u32(of_places), u32(place_shift)}}

// A division by a number that the compiler does not know would take more registers than there are.
struct Divisor {
    u32 number, reciprocal, shift;

    __device__ __forceinline__ u32 of(u32 value, u32& rest) const {  // below 2**31
        const u32 found = static_cast<u64>(value) * reciprocal >> shift;
        rest = value - found * number;
        return found;
    }
};

struct Images {
    int height, width, out_height, out_width, pad_y, pad_x, channels;
    Divisor lines, places;
};

struct Place {
    u32 image, y, x;

    __device__ __forceinline__ Place(long long row, const Images& images)
        : image(images.lines.of(images.places.of(row, x), y)) {}
};

__device__ __forceinline__ int inside(int place, int size) { return min(max(place, 0), size - 1); }

// N lines and columns of an image; the nearest ones for those that are outside.
template <int N>
struct Window {
    long long line[N];  // indices of the first elements
    int column[N];      // from there on
    int y[N], x[N];

    __device__ __forceinline__ Window(
        u32 image, int top, int left, int step, int height, int width, int channels, int channel) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            y[i] = inside(top + i * step, height);
            x[i] = inside(left + i * step, width);
            line[i] = static_cast<u64>(image * height + y[i]) * static_cast<u32>(width * channels);
            column[i] = x[i] * channels + channel;
        }
    }

    __device__ __forceinline__ long long at(int i) const { return line[i / N] + column[i % N]; }
};

template <int D>
struct Integer {
    typedef int Type;
};

template <>
struct Integer<FLOAT32> {
    typedef long long Type;
};

// A rounded value, and below its bits how early in the window it is. These are ordered as integers: numbers that are not
// negative as their bits are, below NaN, and equal ones the later the smaller. What a ReLU makes 0 is negative.
typedef Integer<STORAGE>::Type Key;

__device__ __forceinline__ void keys_of(const float (&values)[PAIR], int early, Key (&keys)[PAIR]) {
    if constexpr (STORAGE == FLOAT32) {
#pragma unroll
        for (int k = 0; k < PAIR; ++k) {
            const u64 bits = values[k] == values[k] ? __float_as_uint(values[k]) : 0x7fffffff;  // NaN of either sign
            keys[k] = bits << BITS | early;
        }
    } else {
        u32 word;
        narrow<STORAGE, PAIR>(values, &word);
#ifndef HOST_LAUNCH
        asm("" : "+r"(word));  // or the compiler rounds them one by one, which takes longer
#endif
        keys[0] = (word << 16) + early;
        if constexpr (PAIR > 1) keys[1] = (word & 0xffff0000) + early;
    }
}

__device__ __forceinline__ float value_of(Key key) {
    if constexpr (STORAGE == FLOAT32) {
        return __uint_as_float(static_cast<u32>(key >> BITS));
    } else {
        return widened(STORAGE, static_cast<u16>(key >> BITS));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) batch_norm_max_pool(
    u64 x, u64 y, u64 where, TILE, IMAGES, const float* gamma, const float* beta, float* mean, float* invstd,
    long long kind, double eps, const float* sums, float* running_mean, float* running_variance, double decay,
    double count) {
    Tile tile(TILE_GIVEN, true);  // what was read or written last may still be in the second-level cache
    __shared__ TileStatistics of_sums;
    if (kind == SUMS) {
        const Running running = {running_mean, running_variance, decay};
        of_sums.finish({sums, mean, invstd, running, float(count), float(eps)}, tile, lanes, channels);
    }
    if (tile.left <= 0) return;
    const Images images = IMAGES_GIVEN;
    const Normalization normalization = {gamma, beta, mean, invstd, int(kind)};
    float scale[GROUP], bias[GROUP];
    normalization.affine(tile, scale, bias, &of_sums, threadIdx.x % lanes);
#pragma unroll 1
    for (; tile.left > 0; --tile.left, tile.row += tile.step) {
        const Place output(tile.row, images);
        const int top = output.y * 2 - images.pad_y, left = output.x * 2 - images.pad_x;
        const Window<3> window(output.image, top, left, 1, height, width, channels, tile.channel);
        int early_line[3], early_column[3];
#pragma unroll
        for (int i = 0; i < 3; ++i) {
            early_line[i] = LAST - (window.y[i] - top) * 3;
            early_column[i] = left - window.x[i];
        }
#pragma unroll
        for (int first = 0; first < GROUP; first += CHANNELS) {
            if (first >= tile.count) break;
            Piece read[9];
            Key largest[CHANNELS];
#pragma unroll
            for (int i = 0; i < 9; ++i) read[i].load(x, window.at(i) + first);
#pragma unroll
            for (int k = 0; k < CHANNELS; ++k) largest[k] = early_line[0] + early_column[0];  // a 0, before all others
#pragma unroll
            for (int i = 0; i < 9; ++i) {
#pragma unroll
                for (int k = 0; k < CHANNELS; k += PAIR) {
                    float values[PAIR];
                    Key keys[PAIR];
#pragma unroll
                    for (int p = 0; p < PAIR; ++p) {
                        values[p] = scale[first + k + p] * read[i][k + p] + bias[first + k + p];
                    }
                    keys_of(values, early_line[i / 3] + early_column[i % 3], keys);
#pragma unroll
                    for (int p = 0; p < PAIR; ++p) largest[k + p] = max(largest[k + p], keys[p]);
                }
            }
            float values[CHANNELS];
            u32 found[CHANNELS];
#pragma unroll
            for (int k = 0; k < CHANNELS; ++k) {
                values[k] = value_of(largest[k]);
                found[k] = LAST - static_cast<u8>(largest[k]);
            }
            const long long at = tile.row * channels + tile.channel + first;
            store(y, at, values);
            store_bytes(where, at, found);
        }
    }
}

// What is per channel, for those of a block. Registers would not do; volatile, or the compiler would keep it in them.
struct Parameters {
    volatile float scale[GROUP][WARP], bias[GROUP][WARP], center[GROUP][WARP], slope[GROUP][WARP], offset[GROUP][WARP];

    // All threads of the block come here.
    __device__ __forceinline__ void fill(
        const Tile& tile, int lanes, int channels, const float* gamma, const float* beta, const float* mean,
        const float* invstd, const float* slopes = nullptr, const float* offsets = nullptr) {
        for (int i = threadIdx.x; i < lanes * GROUP; i += THREADS) {
            const int c = tile.number * lanes * GROUP + i, k = i % GROUP, lane = i / GROUP;
            if (c >= channels) break;
            float scale_of, bias_of;
            affine_of(gamma[c], beta[c], mean[c], invstd[c], scale_of, bias_of);
            scale[k][lane] = scale_of;
            bias[k][lane] = bias_of;
            center[k][lane] = mean[c];
            slope[k][lane] = slopes ? slopes[c] : 0.0f;
            offset[k][lane] = offsets ? offsets[c] : 0.0f;
        }
        __syncthreads();
    }
};

// The gradients behind the ReLU of a square of inputs, from what is read of its windows.
struct Square {
    int top, left;  // of the inputs
    Window<2> inputs, windows;
    bool is_there[4];  // which windows there are, the later ones first

    __device__ __forceinline__ Square(const Place& place, const Images& images, int channel)
        : top(place.y * 2 - images.pad_y), left(place.x * 2 - images.pad_x),
          inputs(place.image, top, left, 1, images.height, images.width, images.channels, channel),
          windows(place.image, place.y, place.x, -1, images.out_height, images.out_width, images.channels, channel) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            is_there[i] = windows.y[i / 2] == int(place.y - i / 2) && windows.x[i % 2] == int(place.x - i % 2);
        }
    }

    // Whether an input is in the image. Otherwise its gradient is 0, as no maximum was there.
    __device__ __forceinline__ bool exists(int i) const {
        return inputs.y[i / 2] == top + i / 2 && inputs.x[i % 2] == left + i % 2;
    }

    // Calls use(c, g, x) for every PAIR of channels c and c + 1: g are their gradients, x the pieces that have them.
    template <class Use>
    __device__ __forceinline__ void each_gradient(
        u64 dy, u64 plus, u64 where, u64 x, int count, const Parameters& parameters, int lane, Use use) const {
#pragma unroll
        for (int first = 0; first < GROUP; first += CHANNELS) {
            if (first >= count) break;
            BytesOf<CHANNELS> found[4];
            Piece gradients[4], others[4], values[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) found[i].load(where, windows.at(i) + first);
#pragma unroll
            for (int i = 0; i < 4; ++i) gradients[i].load(dy, windows.at(i) + first);
            if constexpr (PLUS) {
#pragma unroll
                for (int i = 0; i < 4; ++i) others[i].load(plus, windows.at(i) + first);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) values[i].load(x, inputs.at(i) + first);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                for (u32& word : found[i].words) word = is_there[i] ? word : 0xffffffff;  // no position in a window
            }
#pragma unroll
            for (int k = 0; k < CHANNELS; k += PAIR) {
                float terms[4][PAIR], g[4][PAIR];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
#pragma unroll
                    for (int p = 0; p < PAIR; ++p) {
                        terms[i][p] = gradients[i][k + p];
                        if constexpr (PLUS) terms[i][p] += others[i][k + p];
                    }
                    if constexpr (PLUS) round(terms[i]);  // what another node would find
                }
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int a = i / 2, b = i % 2;
#pragma unroll
                    for (int p = 0; p < PAIR; ++p) {
                        g[i][p] = found[0][k + p] == a * 3 + b ? terms[0][p] : 0.0f;
#pragma unroll
                        for (int w = 1; w < 4; ++w) {  // the later the window, the earlier the position in it
                            const int down = w / 2, right = w % 2, position = (a + 2 * down) * 3 + b + 2 * right;
                            if (down + a < 2 && right + b < 2 && found[w][k + p] == position) g[i][p] += terms[w][p];
                        }
                    }
                    if (a + b < 2) round(g[i]);  // otherwise there is one term
                }
#pragma unroll
                for (int p = 0; p < PAIR; ++p) {
                    const int c = first + k + p;
                    const float scale = parameters.scale[c][lane], bias = parameters.bias[c][lane];
#pragma unroll
                    for (int i = 0; i < 4; ++i) {  // as scale * x + bias > 0
                        g[i][p] = scale * values[i][k + p] > -bias ? g[i][p] : 0.0f;
                    }
                }
                use(first + k, g, values);
            }
        }
    }

    __device__ __forceinline__ static void round(float (&values)[PAIR]) {
        u32 words[PAIR];
        narrow<STORAGE, PAIR>(values, words);
        widen<STORAGE, PAIR>(words, values);
    }
};

// As batch_norm_backward_sums, of `count` inputs in each channel.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_BACKWARD) batch_norm_max_pool_backward_sums(
    u64 dy, u64 plus, u64 where, u64 x, TILE, IMAGES, u64 partial, u32* counters, long long joined, const float* gamma,
    const float* beta, const float* mean, const float* invstd, double count, float* dgamma, float* dbeta, float* slope,
    float* offset) {
    Tile tile(TILE_GIVEN);
    const Images images = IMAGES_GIVEN;
    __shared__ Parameters parameters;
    parameters.fill(tile, lanes, channels, gamma, beta, mean, invstd);
    const int lane = threadIdx.x % lanes;
    GroupPairs sums[1] = {};
#pragma unroll 1
    for (; tile.left > 0; --tile.left, tile.row += tile.step) {
        const Square square(Place(tile.row, images), images, tile.channel);
        square.each_gradient(dy, plus, where, x, tile.count, parameters, lane,
            [&](int c, const float (&g)[4][PAIR], const Piece (&values)[4]) {
#pragma unroll
            for (int p = 0; p < PAIR; ++p) {
                const float center = parameters.center[c + p][lane];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    sums[0].first[c + p] += g[i][p];
                    sums[0].second[c + p] += g[i][p] * (values[i][c % CHANNELS + p] - center);
                }
            }
        });
    }
    if (!Parts{partial, counters, joined, rows, part_rows}.sum(tile, lanes, sums) || threadIdx.x >= lanes) return;
#pragma unroll
    for (int k = 0; k < GROUP; ++k) {
        if (k >= tile.count) break;
        const int c = tile.channel + k;
        const float scale = gamma[c] * invstd[c], elements = count, of_gamma = sums[0].second[k] * invstd[c];
        dgamma[c] = of_gamma;
        dbeta[c] = sums[0].first[k];
        slope[c] = -(scale * invstd[c] * of_gamma) / elements;
        offset[c] = -(scale * sums[0].first[k]) / elements;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_BACKWARD) batch_norm_max_pool_backward_apply(
    u64 dy, u64 plus, u64 where, u64 x, u64 dx, TILE, IMAGES, const float* gamma, const float* beta, const float* mean,
    const float* invstd, const float* slope, const float* offset) {
    Tile tile(TILE_GIVEN, true);
    const Images images = IMAGES_GIVEN;
    __shared__ Parameters parameters;
    parameters.fill(tile, lanes, channels, gamma, beta, mean, invstd, slope, offset);
    const int lane = threadIdx.x % lanes;
#pragma unroll 1
    for (; tile.left > 0; --tile.left, tile.row += tile.step) {
        const Square square(Place(tile.row, images), images, tile.channel);
        square.each_gradient(dy, plus, where, x, tile.count, parameters, lane,
            [&](int c, float (&g)[4][PAIR], Piece (&values)[4]) {
            const int k = c % CHANNELS;
#pragma unroll
            for (int p = 0; p < PAIR; ++p) {
                const float scale = parameters.scale[c + p][lane], center = parameters.center[c + p][lane];
                const float of_x = parameters.slope[c + p][lane], rest = parameters.offset[c + p][lane];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    g[i][p] = g[i][p] * scale + (of_x * (values[i][k + p] - center) + rest);
                }
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                narrow<STORAGE, PAIR>(g[i], values[i].words + k * SIZE<STORAGE> / 4);
                if (k + PAIR < CHANNELS || !square.exists(i)) continue;
                store_words<Piece::N>(dx + (square.inputs.at(i) + c - k) * SIZE<STORAGE>, values[i].words);
            }
        });
    }
}

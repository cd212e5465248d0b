// Batch normalization, ReLU and max pooling by windows of 3x3 with a stride of 2, in one, and the gradients. What is between
// normalization and pooling is rounded to the storage dtype, as it would be in memory, and is never there.
//
// The rows that a thread goes through are outputs, or, backward, squares of 2x2 inputs, which are in the same windows: the
// first of its rows in two, the second one in the later of these; and so for columns. Padding is at most 1, so that each
// window has something inside. What is outside is not skipped, but read from the nearest place inside: a branch around it
// would put the loads after one another.
//
// Macro: PLUS, whether there is another array to be added to dy.

#include "batch_norm_rows.cuh"

constexpr int CHANNELS = WIDTH > 1 ? 16 / SIZE<STORAGE> : 1;  // of a group, whose loads are under way together
constexpr int PAIR = CHANNELS > 1 ? 2 : 1;                      // channels that are rounded together
constexpr int LAST = 8;                                         // position in a window

// Sizes of images and of pooled ones; and how a row's number is divided by the places in a line, and that by the lines.
#define IMAGES                                                                                                        \
    long long height, long long width, long long out_height, long long out_width, long long pad_y, long long pad_x,   \
        long long places, long long of_places, long long shift_places, long long lines, long long of_lines,           \
        long long shift_lines

// The place of a row in an image. A division by numbers that the compiler does not know takes more registers than there
// are: `of_` and `shift_` are a reciprocal, right for what has 31 bits.
struct Place {
    int image, y, x;

    __device__ __forceinline__ Place(u32 row, u32 places, u32 of_places, u32 shift_places, u32 lines, u32 of_lines, u32 shift_lines) {
        const u32 all = static_cast<u64>(row) * of_places >> shift_places;
        image = static_cast<u64>(all) * of_lines >> shift_lines;
        x = row - all * places;
        y = all - image * lines;
    }
};

#define PLACE_OF_ROW tile.row, places, of_places, shift_places, lines, of_lines, shift_lines

__device__ __forceinline__ int inside(int place, int size) { return min(max(place, 0), size - 1); }

// The index of the first element of a line of an image, and that of a pixel in it.
__device__ __forceinline__ long long line_at(u32 image, u32 height, u32 line, u32 width, u32 channels) {
    return static_cast<u64>(image * height + line) * (width * channels);
}

template <int D>
struct Integer {
    using Type = int;
};

template <>
struct Integer<FLOAT32> {
    using Type = long long;
};

// A rounded value, and below its bits how early in the window it is. These are ordered as integers: numbers that are not
// negative as their bits are, below NaN, and equal ones the later the smaller. What a ReLU makes 0 is negative.
using Key = Integer<STORAGE>::Type;

__device__ __forceinline__ void keys_of(const float (&values)[PAIR], int early, Key (&keys)[PAIR]) {
    if constexpr (STORAGE == FLOAT32) {
#pragma unroll
        for (int k = 0; k < PAIR; ++k) {
            const u64 bits = values[k] == values[k] ? __float_as_uint(values[k]) : 0x7fffffff;  // NaN of either sign
            keys[k] = static_cast<Key>(bits << 32 | early);
        }
    } else {
        u32 word;
        narrow<STORAGE, PAIR>(values, &word);
#ifndef HOST_LAUNCH
        asm("" : "+r"(word));  // or they would be rounded one by one, which takes longer
#endif
        keys[0] = (word << 16) + early;
        if constexpr (PAIR > 1) keys[1] = (word & 0xffff0000) + early;
    }
}

__device__ __forceinline__ float value_of(Key key) {
    if constexpr (STORAGE == FLOAT32) {
        return __uint_as_float(static_cast<u32>(key >> 32));
    } else {
        return widened(STORAGE, static_cast<u16>(key >> 16));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) batch_norm_max_pool(
    u64 x, u64 y, u64 where, TILE, IMAGES, const float* gamma, const float* beta, const float* mean,
    const float* invstd) {
    Tile tile(TILE_GIVEN, true);  // what the statistics have read last may still be in the second-level cache
    if (tile.left <= 0) return;
    const Normalization normalization = {gamma, beta, mean, invstd, INVSTD, 0.0f};
    float scale[GROUP], bias[GROUP];
    normalization.affine(tile, scale, bias);
#pragma unroll 1
    for (; tile.left > 0; --tile.left, tile.row += tile.step) {
        const Place output(PLACE_OF_ROW);
        const int top = output.y * 2 - pad_y, left = output.x * 2 - pad_x;
        long long line[3];
        int column[3], early_line[3], early_column[3];
#pragma unroll
        for (int i = 0; i < 3; ++i) {
            const int line_in = inside(top + i, height), column_in = inside(left + i, width);
            line[i] = line_at(output.image, height, line_in, width, channels);
            column[i] = column_in * static_cast<int>(channels) + tile.channel;
            early_line[i] = LAST - (line_in - top) * 3;
            early_column[i] = left - column_in;
        }
#pragma unroll
        for (int first = 0; first < GROUP; first += CHANNELS) {
            if (first >= tile.count) break;
            ElementsOf<CHANNELS> read[9];
            Key largest[CHANNELS];
#pragma unroll
            for (int i = 0; i < 9; ++i) read[i].load(x, line[i / 3] + (column[i % 3] + first));
#pragma unroll
            for (int k = 0; k < CHANNELS; ++k) largest[k] = early_line[0] + early_column[0];  // the first 0
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
                found[k] = LAST - (static_cast<u32>(largest[k]) & 0xff);
            }
            const long long at = tile.row * channels + tile.channel + first;
            store(y, at, values);
            store_bytes(where, at, found);
        }
    }
}

// A square of inputs, and the windows that they are in: places of 2x2, of which some may be outside.
struct Places {
    long long line[2];
    int column[2];
    bool has_line[2], has_column[2];

    // The lines and columns from `y` and `x` on, `step` apart.
    __device__ __forceinline__ Places(
        u32 image, int y, int x, int step, int height, int width, int channels, int channel) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int line_in = inside(y + i * step, height), column_in = inside(x + i * step, width);
            line[i] = line_at(image, height, line_in, width, channels);
            column[i] = column_in * channels + channel;
            has_line[i] = line_in == y + i * step;
            has_column[i] = column_in == x + i * step;
        }
    }

    __device__ __forceinline__ long long at(int i) const { return line[i / 2] + column[i % 2]; }
    __device__ __forceinline__ bool has(int i) const { return has_line[i / 2] && has_column[i % 2]; }
};

// Calls use(i, k, g, x) for each input i of a square and each channel k in steps of PAIR: with the gradients behind the
// ReLU, and what the words of the inputs are.
template <class Use>
__device__ __forceinline__ void each_gradient(
    u64 dy, u64 plus, u64 where, u64 x, const Places& inputs, const Places& windows, int first, const float* scale,
    const float* bias, Use use) {
    BytesOf<CHANNELS> found[4];
    ElementsOf<CHANNELS> gradients[4], others[4], values[4];
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
        for (u32& word : found[i].words) word = windows.has(i) ? word : 0xffffffff;  // no position in a window
    }
#pragma unroll
    for (int k = 0; k < CHANNELS; k += PAIR) {
        u32 words[PAIR];
        float terms[4][PAIR];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
            for (int p = 0; p < PAIR; ++p) {
                terms[i][p] = gradients[i][k + p];
                if constexpr (PLUS) terms[i][p] += others[i][k + p];
            }
            if constexpr (PLUS) {
                narrow<STORAGE, PAIR>(terms[i], words);
                widen<STORAGE, PAIR>(words, terms[i]);  // what another node would find
            }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int a = i / 2, b = i % 2;
            float g[PAIR];
#pragma unroll
            for (int p = 0; p < PAIR; ++p) {
                g[p] = found[0][k + p] == a * 3 + b ? terms[0][p] : 0.0f;
#pragma unroll
                for (int window = 1; window < 4; ++window) {  // the later the window, the earlier the position in it
                    const int down = window / 2, right = window % 2, position = (a + 2 * down) * 3 + b + 2 * right;
                    if (down + a < 2 && right + b < 2 && found[window][k + p] == position) g[p] += terms[window][p];
                }
            }
            if (a + b < 2) {  // otherwise there is one term
                narrow<STORAGE, PAIR>(g, words);
                widen<STORAGE, PAIR>(words, g);
            }
#pragma unroll
            for (int p = 0; p < PAIR; ++p) {  // as scale * x + bias > 0
                const bool open = inputs.has(i) && scale[first + k + p] * values[i][k + p] > -bias[first + k + p];
                g[p] = open ? g[p] : 0.0f;
            }
            use(i, k, g, values[i]);
        }
    }
}

// As batch_norm_backward_sums, of `count` inputs in each channel.
extern "C" __global__ void __launch_bounds__(THREADS, 2) batch_norm_max_pool_backward_sums(
    u64 dy, u64 plus, u64 where, u64 x, TILE, IMAGES, u64 partial, u32* counters, long long joined, const float* gamma,
    const float* beta, const float* mean, const float* invstd, double count, float* dgamma, float* dbeta, float* slope,
    float* offset) {
    Tile tile(TILE_GIVEN);
    const Normalization normalization = {gamma, beta, mean, invstd, INVSTD, 0.0f};
    GroupPairs sums[1] = {};
    if (tile.left > 0) {
        float scale[GROUP], bias[GROUP], center[GROUP];
        normalization.affine(tile, scale, bias);
        load_channels(mean, tile, center);
#pragma unroll 1
        for (; tile.left > 0; --tile.left, tile.row += tile.step) {
            const Place square(PLACE_OF_ROW);
            const Places inputs(
                square.image, square.y * 2 - pad_y, square.x * 2 - pad_x, 1, height, width, channels, tile.channel);
            const Places windows(square.image, square.y, square.x, -1, out_height, out_width, channels, tile.channel);
#pragma unroll
            for (int first = 0; first < GROUP; first += CHANNELS) {
                if (first >= tile.count) break;
                each_gradient(dy, plus, where, x, inputs, windows, first, scale, bias,
                    [&](int, int k, const float (&g)[PAIR], const ElementsOf<CHANNELS>& value) {
#pragma unroll
                    for (int p = 0; p < PAIR; ++p) {
                        sums[0].first[first + k + p] += g[p];
                        sums[0].second[first + k + p] += g[p] * (value[k + p] - center[first + k + p]);
                    }
                });
            }
        }
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

extern "C" __global__ void __launch_bounds__(THREADS, 2) batch_norm_max_pool_backward_apply(
    u64 dy, u64 plus, u64 where, u64 x, u64 dx, TILE, IMAGES, const float* gamma, const float* beta, const float* mean,
    const float* invstd, const float* slope, const float* offset) {
    Tile tile(TILE_GIVEN, true);
    if (tile.left <= 0) return;
    const Normalization normalization = {gamma, beta, mean, invstd, INVSTD, 0.0f};
    float scale[GROUP], bias[GROUP], center[GROUP], slopes[GROUP], offsets[GROUP];
    normalization.affine(tile, scale, bias);
    load_channels(mean, tile, center);
    load_channels(slope, tile, slopes);
    load_channels(offset, tile, offsets);
#pragma unroll 1
    for (; tile.left > 0; --tile.left, tile.row += tile.step) {
        const Place square(PLACE_OF_ROW);
        const Places inputs(
            square.image, square.y * 2 - pad_y, square.x * 2 - pad_x, 1, height, width, channels, tile.channel);
        const Places windows(square.image, square.y, square.x, -1, out_height, out_width, channels, tile.channel);
#pragma unroll
        for (int first = 0; first < GROUP; first += CHANNELS) {
            if (first >= tile.count) break;
            each_gradient(dy, plus, where, x, inputs, windows, first, scale, bias,
                [&](int i, int k, const float (&g)[PAIR], ElementsOf<CHANNELS>& value) {
                float result[PAIR];
#pragma unroll
                for (int p = 0; p < PAIR; ++p) {
                    const int c = first + k + p;
                    result[p] = g[p] * scale[c] + (slopes[c] * (value[k + p] - center[c]) + offsets[c]);
                }
                narrow<STORAGE, PAIR>(result, value.words + k * SIZE<STORAGE> / 4);
                if (k + PAIR == CHANNELS && inputs.has(i)) {
                    store_words<ElementsOf<CHANNELS>::N>(dx + (inputs.at(i) + first) * SIZE<STORAGE>, value.words);
                }
            });
        }
    }
}

// Batch normalization, ReLU and max pooling in one. What is between normalization and pooling is rounded to the storage
// dtype, as it would be in memory, and is never there. The rows that a thread goes through are outputs.

#include "batch_norm_rows.cuh"

#include "batch_norm_pooling.cuh"

constexpr int BLOCKS = STORAGE == FLOAT32 ? 2 : 3;  // of a multiprocessor, as far as registers do
constexpr int BITS = SIZE<STORAGE> * 8;
constexpr int LAST = 8;  // position in a window

template <int D>
struct Integer {
    typedef int Type;
};

template <>
struct Integer<FLOAT32> {
    typedef long long Type;
};

// A rounded value, and below its bits how early in the window it is. These are ordered as integers: what is not
// negative is as its bits, NaN above all, and of equal values the first one is the largest. What a ReLU makes 0 is
// negative.
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
    u64 x, u64 y, u64 where, TILE, IMAGES, NORMALIZATION(), double count) {
    Tile tile(TILE_GIVEN, true);  // what was read or written last may still be in the second-level cache
    __shared__ TileStatistics of_sums;
    if (kind == SUMS) of_sums.finish(BATCH_SUMS_GIVEN(, count), tile, lanes, channels);
    if (tile.left <= 0) return;
    const Images images = IMAGES_GIVEN;
    const Normalization normalization = NORMALIZATION_GIVEN();
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

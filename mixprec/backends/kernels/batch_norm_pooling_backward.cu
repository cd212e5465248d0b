// The gradients of batch normalization, ReLU and max pooling in one, in two launches: sums, and the pass that writes
// dx. Both gather the gradients of the inputs anew, from arrays of a quarter of their size, and round them as they
// would be in memory.
//
// The rows that a thread goes through are squares of 2x2 inputs, which are in the same windows: the first of its rows
// in two, the second one in the later of these; and so for columns.
//
// Macro: PLUS, whether there is another array to be added to dy.

#include "batch_norm_rows.cuh"

#include "batch_norm_pooling.cuh"

// What is per channel, for the channels of a block. Registers would not do; volatile, or the compiler would keep it in them.
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
    int top, left;              // of the inputs
    Window<2> inputs, windows;  // the later windows first
    bool is_there[4];           // which windows there are

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
#ifndef HOST_LAUNCH
        asm volatile("" : "+r"(count));  // or the compiler mixes the pieces of a group, which takes more registers
#endif
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
extern "C" __global__ void __launch_bounds__(THREADS, 2) batch_norm_max_pool_backward_sums(
    u64 dy, u64 plus, u64 where, u64 x, TILE, IMAGES, u64 partial, u32* counters, long long joined, const float* gamma,
    const float* beta, const float* mean, const float* invstd, double count, float* dgamma, float* dbeta, float* slope,
    float* offset) {
    Tile tile(TILE_GIVEN);
    const Images images = IMAGES_GIVEN;
    __shared__ Parameters parameters;
    parameters.fill(tile, lanes, channels, gamma, beta, mean, invstd);
    const int lane = threadIdx.x % lanes;
    GroupSums<2> sums[1] = {};
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
                    sums[0].of[0][c + p] += g[i][p];
                    sums[0].of[1][c + p] += g[i][p] * (values[i][c % CHANNELS + p] - center);
                }
            }
        });
    }
    if (!Parts{partial, counters, joined, rows, part_rows}.sum(tile, lanes, sums) || threadIdx.x >= lanes) return;
    const ChannelGradients of_channels = {dgamma, dbeta, slope, offset};
#pragma unroll
    for (int k = 0; k < GROUP; ++k) {
        if (k >= tile.count) break;
        const int c = tile.channel + k;
        of_channels.finish(c, count, gamma[c], invstd[c], sums[0].of[0][k], sums[0].of[1][k]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) batch_norm_max_pool_backward_apply(
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

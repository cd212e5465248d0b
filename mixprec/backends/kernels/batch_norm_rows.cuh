// What the kernels of batch normalization of arrays (rows, channels) have in common.
//
// A thread has a group of eight neighbouring channels, and every so many rows of a part; `lanes` threads lie beside each
// other in a row. With WIDTH above 1 rows consist of whole groups, which 16-byte accesses read and write; otherwise
// elements are read one by one, and the last group may be shorter. All sums are taken in an order that depends on
// nothing but the shape.

constexpr int GROUP = 8;
constexpr int WORDS = WIDTH > 1 ? GROUP * SIZE<STORAGE> / 4 : GROUP;  // that hold a group

// Rows that a thread reads before it uses the first of them, by the number of arrays that it reads: about 100 bytes, for
// 400 would take more registers than there are.
template <int ARRAYS>
constexpr int ROWS_AT_ONCE = WIDTH == 1 ? 1 : (ARRAYS > 2 ? 8 : 16) / WORDS;

#define TILE long long rows, long long channels, long long lanes, long long part_rows

#define TILE_GIVEN rows, channels, lanes, part_rows

// What a block has, and which rows of that its thread has.
struct Tile {
    int number, part;  // of the block: which channels, which rows
    int parts;
    int channel;       // the first of the group
    int count;         // channels of the group; 0: the thread has none
    int left;          // rows of the thread
    long long row;     // the first of them
    long long step;    // to the next one
    long long groups;  // of each row

    // Backwards the blocks, and the rows of each thread, come in the opposite order.
    __device__ __forceinline__ Tile(TILE, bool backwards = false) : groups((channels + GROUP - 1) / GROUP) {
        const int tiles = (groups + lanes - 1) / lanes, block = backwards ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
        parts = gridDim.x / tiles;
        part = block / tiles;
        number = block - part * tiles;
        const int group = number * lanes + threadIdx.x % lanes;
        channel = group * GROUP;
        count = group >= groups ? 0 : WIDTH > 1 ? GROUP : min(GROUP, static_cast<int>(channels) - channel);
        const int own = min(part_rows, rows - part * part_rows), place = threadIdx.x / lanes;
        const int each = THREADS / lanes;
        left = count && place < own ? (own - place + each - 1) / each : 0;
        row = part * part_rows + place;
        step = each;
        if (backwards) {
            row += (left - 1) * step;
            step = -step;
        }
    }
};

// Some rows of a thread. Of the last ones there may be fewer; then the last of all comes several times, to be read again
// and written again as the same. A branch around what is not there would put the loads after one another: the compiler
// moves them to where they are used.
template <bool WHOLE>
struct Some {
    long long row, step;
    int count;

    __device__ __forceinline__ long long at(int r) const { return row + (WHOLE ? r : min(r, count - 1)) * step; }
    __device__ __forceinline__ bool has(int r) const { return WHOLE || r < count; }
};

// Calls body(Some) for all rows of a thread, ROWS at once.
template <int ROWS, class Body>
__device__ __forceinline__ void each(Tile& tile, Body body) {
#pragma unroll 1
    for (; tile.left >= ROWS; tile.left -= ROWS, tile.row += ROWS * tile.step) {
        body(Some<true>{tile.row, tile.step, ROWS});
    }
    if (tile.left > 0) body(Some<false>{tile.row, tile.step, tile.left});
}

// A group as it lies in memory.
struct Raw {
    u32 words[WORDS];
};

// The words of PIECE elements, which are loaded and stored at once.
constexpr int PIECE = WIDTH > 1 ? GROUP : 1;
constexpr int PIECE_WORDS = PIECE * SIZE<STORAGE> / 4;

__device__ __forceinline__ void load_raw(u64 address, long long i, const Tile& tile, Raw& x) {
#pragma unroll
    for (int k = 0; k < GROUP; k += PIECE) {
        u32* words = x.words + k * WORDS / GROUP;
        if (PIECE == 1) words[0] = 0;
        if (k < tile.count) load_words<PIECE_WORDS>(address + (i + k) * SIZE<STORAGE>, words);
    }
}

__device__ __forceinline__ void store_raw(u64 address, long long i, const Tile& tile, const Raw& x) {
#pragma unroll
    for (int k = 0; k < GROUP; k += PIECE) {
        if (k < tile.count) store_words<PIECE_WORDS>(address + (i + k) * SIZE<STORAGE>, x.words + k * WORDS / GROUP);
    }
}

__device__ __forceinline__ void widen(const Raw& raw, float (&x)[GROUP]) {
#pragma unroll
    for (int k = 0; k < GROUP; k += PIECE) widen<STORAGE, PIECE>(raw.words + k * WORDS / GROUP, x + k);
}

__device__ __forceinline__ void narrow(const float (&x)[GROUP], Raw& raw) {
#pragma unroll
    for (int k = 0; k < GROUP; k += PIECE) narrow<STORAGE, PIECE>(x + k, raw.words + k * WORDS / GROUP);
}

// Rows of an array (rows, channels).
template <int ROWS, bool WHOLE>
__device__ __forceinline__ void load_rows(
    u64 address, const Some<WHOLE>& some, const Tile& tile, long long channels, Raw (&x)[ROWS]) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) load_raw(address, some.at(r) * channels + tile.channel, tile, x[r]);
}

// Of rows of a mask, the bits of the group.
template <int ROWS, bool WHOLE>
__device__ __forceinline__ void load_bits(u64 mask, const Some<WHOLE>& some, const Tile& tile, u8 (&bits)[ROWS]) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) load_one(mask + some.at(r) * tile.groups + tile.channel / GROUP, bits[r]);
}

// The sum of two gradients, rounded as another node would find it in memory.
__device__ __forceinline__ void add_rounded(const Raw& other, Raw& raw, float (&gradient)[GROUP]) {
    float value[GROUP];
    widen(other, value);
#pragma unroll
    for (int k = 0; k < GROUP; ++k) gradient[k] += value[k];
    narrow(gradient, raw);
    widen(raw, gradient);
}

// Zeros where the ReLU was closed.
__device__ __forceinline__ void close(u8 bits, float (&gradient)[GROUP]) {
#pragma unroll
    for (int k = 0; k < GROUP; ++k) gradient[k] = bits >> k & 1 ? gradient[k] : 0.0f;
}

// The factor of the image that a row belongs to. A division of 64 bits would take more registers than there are.
__device__ __forceinline__ float factor_of(const float* factors, long long row, long long image_rows) {
    return factors[static_cast<u32>(row) / static_cast<u32>(image_rows)];
}

// What is per channel, float32; a value instead if there is no array.
__device__ __forceinline__ void load_channels(
    const float* values, const Tile& tile, float (&x)[GROUP], float missing = 0.0f) {
    const u64 address = reinterpret_cast<u64>(values + tile.channel);
    if (WIDTH > 1 && values && address % 16 == 0) {  // element by element a warp would go through its lines eight times
        load_four(address, x);
        load_four(address + 16, x + 4);
        return;
    }
#pragma unroll
    for (int k = 0; k < GROUP; ++k) x[k] = values && k < tile.count ? values[tile.channel + k] : missing;
}

// The statistics of all channels of a block, from sums. All blocks of a tile find the same, and the first of them
// writes it. A thread finishes one channel, and not the eight of its group: those would be hundreds of instructions
// before a load.
struct TileStatistics {
    float center[GROUP][WARP], inverse[GROUP][WARP];  // there are at most as many lanes as threads of a warp

    // All threads of the block come here.
    __device__ __forceinline__ void finish(const BatchSums& sums, const Tile& tile, int lanes, int channels) {
        for (int i = threadIdx.x; i < lanes * GROUP; i += THREADS) {
            const int c = tile.number * lanes * GROUP + i, k = i % GROUP, lane = i / GROUP;
            if (c < channels) sums.finish(c, channels, tile.part == 0, center[k][lane], inverse[k][lane]);
        }
        __syncthreads();
    }
};

// The parameters of a normalization, of which a kernel may have several: names end with `n`.
#define NORMALIZATION(n)                                                                                            \
    const float *gamma##n, const float *beta##n, float *mean##n, float *spread##n, long long kind##n, double eps##n, \
        const float *sums##n, float *running_mean##n, float *running_variance##n, double decay##n

#define NORMALIZATION_GIVEN(n) \
    {gamma##n, beta##n, mean##n, spread##n, static_cast<int>(kind##n), static_cast<float>(eps##n)}

#define BATCH_SUMS_GIVEN(n, count)                                                                                     \
    {                                                                                                                  \
        sums##n, mean##n, spread##n, {running_mean##n, running_variance##n, decay##n}, static_cast<float>(count),       \
            static_cast<float>(eps##n)                                                                                  \
    }

// A gamma that is not there is 1.
struct Normalization {
    const float *gamma, *beta, *mean, *spread;
    int kind;
    float eps;

    // `of_sums` is there if that is the kind, and `lane` the group in it.
    __device__ __forceinline__ void affine(
        const Tile& tile, float (&scale)[GROUP], float (&bias)[GROUP], const TileStatistics* of_sums = nullptr,
        int lane = 0) const {
        load_channels(gamma, tile, scale, 1.0f);
        load_channels(beta, tile, bias);
        if (kind == AFFINE) return;
        float center[GROUP], spreads[GROUP];
        if (of_sums && kind == SUMS) {
#pragma unroll
            for (int k = 0; k < GROUP; ++k) {
                center[k] = of_sums->center[k][lane];
                spreads[k] = of_sums->inverse[k][lane];
            }
        } else {
            load_channels(mean, tile, center);
            load_channels(spread, tile, spreads);
        }
#pragma unroll
        for (int k = 0; k < GROUP; ++k) {
            affine_of(scale[k], bias[k], center[k], invstd_of(spreads[k], kind, eps), scale[k], bias[k]);
        }
    }
};

// Moments of the channels of a group, see Moments: all have the same count.
struct GroupMoments {
    static constexpr int N = 2, AT_ONCE = 1;  // numbers of a channel; entries that are read before the first is used

    float count, of[N][GROUP];  // means, and squares

    __device__ __forceinline__ void operator+=(const GroupMoments& other) {
        if (other.count == 0.0f) return;
        const float all = count + other.count, share = other.count / all, weight = count * share;
#pragma unroll
        for (int k = 0; k < GROUP; ++k) {
            const float distance = other.of[0][k] - of[0][k];
            of[1][k] += other.of[1][k] + distance * distance * weight;
            of[0][k] += distance * share;
        }
        count = all;
    }
};

// Some sums of each channel of a group. The count is there to keep threads apart in shared memory.
template <int SUMS_OF_CHANNEL>
struct GroupSums {
    static constexpr int N = SUMS_OF_CHANNEL, AT_ONCE = 2;

    float count, of[N][GROUP];

    __device__ __forceinline__ void operator+=(const GroupSums& other) {
#pragma unroll
        for (int n = 0; n < N; ++n) {
#pragma unroll
            for (int k = 0; k < GROUP; ++k) of[n][k] += other.of[n][k];
        }
    }
};

// Sums over the parts of a tile. Each block leaves its own in `partial`; the last block of each `joined` parts adds up
// those, and the last of these blocks their sums: 2 * sqrt(parts) entries one after the other in place of `parts`.
struct Parts {
    u64 partial;    // (parts, and after that sets of them; N of what is added up; groups * GROUP) float32
    u32* counters;  // for each tile those of its sets, and one of the tile: 0 before and after
    long long joined, rows, part_rows;

    // True in the last block, whose threads below `lanes` have the sums of all then.
    template <class T>
    __device__ __forceinline__ bool sum(const Tile& tile, int lanes, T (&values)[1]) const {
        reduce_columns(values, lanes);
        if (tile.parts == 1) return true;
        const int sets = (tile.parts + joined - 1) / joined, set = tile.part / joined, first = set * joined;
        const int members = min(static_cast<int>(joined), tile.parts - first);
        u32* of_tile = counters + tile.number * (sets + 1);
        leave(tile, lanes, tile.part, values[0]);
        if (!is_last_block(of_tile + set, members)) return false;
        gather(tile, lanes, 0, first, members, part_rows, values);
        if (sets == 1) return true;
        leave(tile, lanes, tile.parts + set, values[0]);
        if (!is_last_block(of_tile + sets, sets)) return false;
        gather(tile, lanes, tile.parts, 0, sets, joined * part_rows, values);
        return true;
    }

    // Where an entry has the n-th numbers of the group.
    template <class T>
    __device__ __forceinline__ u64 place(const Tile& tile, long long entry, int n) const {
        return partial + ((entry * T::N + n) * tile.groups * GROUP + tile.channel) * sizeof(float);
    }

    template <class T>
    __device__ __forceinline__ void leave(const Tile& tile, int lanes, int number, const T& values) const {
        if (threadIdx.x >= lanes || !tile.count) return;
#pragma unroll
        for (int n = 0; n < T::N; ++n) {
            const u64 address = place<T>(tile, number, n);
            store_four(address, values.of[n]);
            store_four(address + 16, values.of[n] + 4);
        }
    }

    // Entries first to first + count of those that begin at `base`, each of as many rows, into threads below `lanes`.
    template <class T>
    __device__ __forceinline__ void gather(
        const Tile& tile, int lanes, int base, int first, int count, long long entry_rows, T (&values)[1]) const {
        constexpr int ENTRIES = T::AT_ONCE;
        const int each = THREADS / lanes;
        values[0] = T();
#pragma unroll 1
        for (int start = threadIdx.x / lanes; start < count && tile.count; start += ENTRIES * each) {
            T others[ENTRIES];
#pragma unroll
            for (int e = 0; e < ENTRIES; ++e) {
#pragma unroll
                for (int n = 0; n < T::N; ++n) {
                    const u64 address = place<T>(tile, base + first + min(start + e * each, count - 1), n);
                    load_of_others(address, others[e].of[n]);
                    load_of_others(address + 16, others[e].of[n] + 4);
                }
            }
#pragma unroll
            for (int e = 0; e < ENTRIES; ++e) {
                const long long number = first + start + e * each;
                const bool has = number < first + count;
                others[e].count = has ? min(entry_rows, rows - number * entry_rows) : 0;
#pragma unroll
                for (int n = 0; n < T::N; ++n) {
#pragma unroll
                    for (int k = 0; k < GROUP; ++k) others[e].of[n][k] = has ? others[e].of[n][k] : 0.0f;
                }
                values[0] += others[e];
            }
        }
        reduce_columns(values, lanes);
    }
};

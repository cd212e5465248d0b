// Batch normalization of arrays (images, channels, pixels), and biases for them. Forward and backward take three launches
// each: partial statistics, their combination - backward that is in batch_norm_channels.cu -, and the pass that writes.
//
// A plane is what an image has of a channel. A thread has one channel, and every so many units of its planes, image by
// image; `block_channels` neighbouring channels are in a block, those of neighbouring threads. A unit is WIDTH elements
// at a multiple of WIDTH, read or written at once. Where the pixels are no multiple of WIDTH, planes share units: what
// only reads takes all that a plane is in, and leaves out the elements of others; what writes takes those that begin in
// the plane, the last of which may end with elements of the next channel. With WIDTH above 1 planes have at least WIDTH
// pixels, and an array whole units. All sums are taken in an order that depends on nothing but shape and alignment.

constexpr int READ = 4;    // units that a thread reads before it uses the first of them
constexpr int PAIRED = 2;  // the same if it reads two arrays, or writes
constexpr int MIN_BLOCKS = 2;  // at a time, of those of statistics: for more the compiler spills registers

#define PLANES                                                                                                        \
    long long images, long long channels, long long pixels, long long units, long long block_channels,                \
        long long part_units

#define PLANES_GIVEN images, channels, pixels, units, block_channels, part_units

// The elements from `at`, of which those from `begin` to `end` are of the thread's channel; none if `end` is 0.
struct Unit {
    long long at;
    int begin, end;
};

// The units of a thread, one after the other.
template <bool WRITES>
struct Walk {
    int channel, part, step;
    long long pixels, units, row;      // pixels and units of a plane, elements of an image
    long long number, end;             // of the unit among those of the channel
    long long plane, place;            // the first element of the plane, and which of its units comes next
    long long plane_step, place_step;  // to the thread's next one

    __device__ __forceinline__ Walk(PLANES) : pixels(pixels), units(units) {
        const int width = block_channels, tiles = (channels + width - 1) / width;
        part = blockIdx.x / tiles;
        channel = (blockIdx.x - part * tiles) * width + threadIdx.x % width;
        step = THREADS / width;
        row = channels * pixels;
        number = part * part_units + threadIdx.x / width;
        end = channel < channels ? min(images * units, (part + 1) * part_units) : 0;
        const long long image = number / units;
        place = number - image * units;
        plane = image * row + channel * pixels;
        const int images_step = units > step ? 0 : step / static_cast<int>(units);
        plane_step = images_step * row;
        place_step = step - images_step * units;
    }

    // Whether there are as many units.
    __device__ __forceinline__ bool more(int count = 1) const { return number + (count - 1) * step < end; }

    __device__ __forceinline__ Unit peek() const {
        if (WIDTH == 1) return {plane + place, 0, 1};
        const long long first = (WRITES ? plane + WIDTH - 1 : plane) & ~(WIDTH - 1LL);
        Unit unit = {first + place * WIDTH, 0, WIDTH};
        const long long rest = plane + pixels - unit.at;
        if (!WRITES && unit.at < plane) unit.begin = plane - unit.at;
        if (rest < WIDTH) unit.end = rest > 0 ? rest : 0;
        if (rest <= 0) unit.at = first;  // one more than this plane has: what can be read in its place
        return unit;
    }

    __device__ __forceinline__ Unit next() {
        const Unit unit = peek();
        number += step;
        plane += plane_step;
        place += place_step;
        if (place >= units) {
            place -= units;
            plane += row;
        }
        return unit;
    }
};

// Calls body(array of N units) as long as there are so many, and for the rest with fewer.
template <int N, bool WRITES, class Body>
__device__ __forceinline__ void each(Walk<WRITES>& walk, Body body) {
    while (walk.more(N)) {
        Unit units[N];
#pragma unroll
        for (int r = 0; r < N; ++r) units[r] = walk.next();
        body(units);
    }
    if constexpr (N > 1) each<N / 2>(walk, body);
}

template <int N>
__device__ __forceinline__ void load_units(u64 address, const Unit (&units)[N], float (&values)[N][WIDTH]) {
#pragma unroll
    for (int r = 0; r < N; ++r) load(address, units[r].at, values[r]);
}

// Replaces what is of other channels.
__device__ __forceinline__ void clip(const Unit& unit, float (&x)[WIDTH], float value) {
    if (unit.end - unit.begin == WIDTH) return;
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) x[k] = k >= unit.begin && k < unit.end ? x[k] : value;
}

__device__ __forceinline__ int after(int channel, long long channels) {
    return channel + 1 < channels ? channel + 1 : 0;
}

// Forward

// An element of the channel, the same for all threads. Means are told from it: beside a large one, the digits in which
// those of threads differ would be lost, and with them some of the variance.
__device__ __forceinline__ float origin_of(u64 x, long long channel, long long pixels) {
    float origin[1];
    load(x, channel * pixels, origin);
    return origin[0];
}

// Every thread takes its sums about its first element, see batch_norm_statistics in batch_norm.cu.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) batch_norm_planes_statistics(
    u64 x, PLANES, float* partial) {
    Walk<false> walk(PLANES_GIVEN);
    while (walk.more() && !walk.peek().end) walk.next();
    Moments moments[1] = {};
    if (walk.more()) {
        const Unit start = walk.peek();
        float first[1], sum = 0.0f, squares = 0.0f;
        long long elements = 0;
        load(x, start.at + start.begin, first);
        const float origin = origin_of(x, walk.channel, pixels);
        each<READ>(walk, [&](const auto& units) {
            constexpr int N = sizeof(units) / sizeof(Unit);
            float values[N][WIDTH];
            load_units(x, units, values);
#pragma unroll
            for (int r = 0; r < N; ++r) {
                clip(units[r], values[r], first[0]);
                elements += units[r].end - units[r].begin;
#pragma unroll
                for (int k = 0; k < WIDTH; ++k) {
                    const float distance = values[r][k] - first[0];
                    sum += distance;
                    squares += distance * distance;
                }
            }
        });
        const float count = elements, distance = sum / count, rest = squares - sum * distance;
        moments[0] = {count, first[0] - origin + distance, rest < 0.0f ? 0.0f : rest};
    }
    reduce_columns(moments, block_channels);
    if (threadIdx.x < block_channels && walk.channel < channels) {
        float* of = partial + walk.part * 3 * channels + walk.channel;
        of[0] = moments[0].count;
        of[channels] = moments[0].mean;
        of[2 * channels] = moments[0].squares;
    }
}

// Parts differ in how many elements they have: units do.
extern "C" __global__ void __launch_bounds__(THREADS) batch_norm_planes_finalize(
    u64 x, const float* partial, long long parts, long long channels, long long pixels, float* mean, float* invstd,
    float* running_mean, float* running_variance, double decay, double eps) {
    const int c = blockIdx.x * COMBINED + threadIdx.x % COMBINED;
    Moments moments[1] = {};
    if (c < channels) {
#pragma unroll 4
        for (long long part = threadIdx.x / COMBINED; part < parts; part += THREADS / COMBINED) {
            const float* of = partial + part * 3 * channels + c;
            moments[0] += {of[0], of[channels], of[2 * channels]};
        }
    }
    reduce_columns(moments, COMBINED);
    if (threadIdx.x >= COMBINED || c >= channels) return;
    const Moments all = moments[0];
    const float center = origin_of(x, c, pixels) + all.mean, variance = all.squares / all.count;
    mean[c] = center;
    invstd[c] = invstd_of(variance, VARIANCE, static_cast<float>(eps));
    Running{running_mean, running_variance, decay}.move(c, all.count, center, variance);
}

// y = scale * (x - mean) + beta. The mean is taken away first: then one that is large beside the spread costs no digits.
extern "C" __global__ void __launch_bounds__(THREADS) batch_norm_planes_apply(
    u64 x, u64 y, PLANES, const float* gamma, const float* beta, const float* mean, const float* spread, long long kind,
    double eps) {
    struct Line {
        float center, scale, shift;
    };
    Walk<true> walk(PLANES_GIVEN);
    if (!walk.more()) return;
    const auto line_of = [&](int c) -> Line {
        return {mean[c], gamma[c] * invstd_of(spread[c], kind, static_cast<float>(eps)), beta[c]};
    };
    const Line own = line_of(walk.channel), next = line_of(after(walk.channel, channels));
    each<PAIRED>(walk, [&](const auto& units) {
        constexpr int N = sizeof(units) / sizeof(Unit);
        float values[N][WIDTH];
        load_units(x, units, values);
#pragma unroll
        for (int r = 0; r < N; ++r) {
            if (!units[r].end) continue;
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) {
                const Line line = k < units[r].end ? own : next;
                values[r][k] = line.scale * (values[r][k] - line.center) + line.shift;
            }
            store(y, units[r].at, values[r]);
        }
    });
}

// Backward

// The sums of dy and of dy * (x - mean).
extern "C" __global__ void __launch_bounds__(THREADS) batch_norm_planes_backward_sums(
    u64 dy, u64 x, PLANES, const float* mean, float* partial) {
    Walk<false> walk(PLANES_GIVEN);
    Pair sums[1] = {};
    if (walk.more()) {
        const float center = mean[walk.channel];
        each<PAIRED>(walk, [&](const auto& units) {
            constexpr int N = sizeof(units) / sizeof(Unit);
            float values[N][WIDTH], gradients[N][WIDTH];
            load_units(x, units, values);
            load_units(dy, units, gradients);
#pragma unroll
            for (int r = 0; r < N; ++r) {
                clip(units[r], values[r], center);
                clip(units[r], gradients[r], 0.0f);
#pragma unroll
                for (int k = 0; k < WIDTH; ++k) {
                    sums[0] += {gradients[r][k], gradients[r][k] * (values[r][k] - center)};
                }
            }
        });
    }
    reduce_columns(sums, block_channels);
    if (threadIdx.x < block_channels && walk.channel < channels) {
        float* of = partial + walk.part * 2 * channels + walk.channel;
        of[0] = sums[0].first;
        of[channels] = sums[0].second;
    }
}

// dx = scale * dy + slope * (x - mean) + offset, the last two from batch_norm_planes_backward_finalize.
extern "C" __global__ void __launch_bounds__(THREADS) batch_norm_planes_backward_apply(
    u64 dy, u64 x, u64 dx, PLANES, const float* gamma, const float* mean, const float* invstd, const float* slope,
    const float* offset) {
    struct Slopes {
        float center, scale, slope, offset;
    };
    Walk<true> walk(PLANES_GIVEN);
    if (!walk.more()) return;
    const auto slopes_of = [&](int c) -> Slopes { return {mean[c], gamma[c] * invstd[c], slope[c], offset[c]}; };
    const Slopes own = slopes_of(walk.channel), next = slopes_of(after(walk.channel, channels));
    each<PAIRED>(walk, [&](const auto& units) {
        constexpr int N = sizeof(units) / sizeof(Unit);
        float values[N][WIDTH], gradients[N][WIDTH];
        load_units(x, units, values);
        load_units(dy, units, gradients);
#pragma unroll
        for (int r = 0; r < N; ++r) {
            if (!units[r].end) continue;
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) {
                const Slopes of = k < units[r].end ? own : next;
                gradients[r][k] = of.scale * gradients[r][k] + (of.slope * (values[r][k] - of.center) + of.offset);
            }
            store(dx, units[r].at, gradients[r]);
        }
    });
}

// y += b in place, b (channels).
extern "C" __global__ void __launch_bounds__(THREADS) add_bias(u64 y, u64 b, PLANES) {
    Walk<true> walk(PLANES_GIVEN);
    if (!walk.more()) return;
    float own[1], next[1];
    load(b, walk.channel, own);
    load(b, after(walk.channel, channels), next);
    each<PAIRED>(walk, [&](const auto& units) {
        constexpr int N = sizeof(units) / sizeof(Unit);
        float values[N][WIDTH];
        load_units(y, units, values);
#pragma unroll
        for (int r = 0; r < N; ++r) {
            if (!units[r].end) continue;
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) values[r][k] += k < units[r].end ? own[0] : next[0];
            store(y, units[r].at, values[r]);
        }
    });
}

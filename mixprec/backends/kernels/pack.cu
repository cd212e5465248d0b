// Many arrays times a number, side by side in one: gradients before they are summed over processes, and sums that are
// rounded. From STORAGE to OTHER, in float32, with one rounding.
//
// The table of arrays is an argument by value, as a CUDA graph uploads nothing.

struct Source {
    u64 address;  // 0 for zeros
    long long size;
    u32 first_block;
    u32 start;  // in the target, in groups of 8 elements
};

struct Sources {
    Source of[160];  // arguments have 4,096 bytes
};

template <int W>
struct AtOnce {
    static constexpr int value = W;
};

extern "C" __global__ void __launch_bounds__(THREADS) pack(
    const Sources sources, long long count, u64 target, double share, long long chunk) {
    int row = 0;
    for (int step = 128; step; step /= 2) {
        if (row + step < count && sources.of[row + step].first_block <= blockIdx.x) row += step;
    }
    const u64 address = sources.of[row].address;
    const long long size = sources.of[row].size;
    const u64 out = target + static_cast<u64>(sources.of[row].start) * 8 * SIZE<OTHER>;
    const float factor = static_cast<float>(share);
    const auto copy = [&](auto width, long long i) {
        constexpr int W = decltype(width)::value;
        float x[W] = {};
        if (address) load<STORAGE>(address, i, x);
#pragma unroll
        for (int k = 0; k < W; ++k) x[k] *= factor;
        store<OTHER>(out, i, x);
    };
    const long long begin = static_cast<long long>(blockIdx.x - sources.of[row].first_block) * chunk;
    const long long end = begin + chunk < size ? begin + chunk : size;
    const long long whole = address % 16 == 0 ? begin + (end - begin) / 8 * 8 : begin;
    for (long long i = begin + threadIdx.x * 8; i < whole; i += THREADS * 8) copy(AtOnce<8>(), i);
    for (long long i = whole + threadIdx.x; i < end; i += THREADS) copy(AtOnce<1>(), i);
}

// Sequences packed step by step: each step has a row of every sequence that has not ended, the longest sequence first.
//
// The table is an argument by value, as a CUDA graph uploads nothing.

struct Sequences {
    u64 addresses[256];
    u32 firsts[482];  // the first packed row of each step, and the end of the last; arguments have 4,096 bytes
};

constexpr int BYTES = WIDTH * SIZE<STORAGE>;

// A row has `vectors` of WIDTH elements. The table has `count` sequences from the one with the number `first` on.
template <bool PACK>
__device__ __forceinline__ void copy_rows(
    const Sequences& sequences, long long steps, u64 packed, long long vectors, long long first, long long count) {
    const long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    const long long row = sequences.firsts[0] + i / vectors, vector = i % vectors;
    if (row >= sequences.firsts[steps]) return;
    int step = 0;
    for (int more = 256; more; more /= 2) {
        if (step + more < steps && sequences.firsts[step + more] <= row) step += more;
    }
    const long long sequence = row - sequences.firsts[step] - first;
    if (sequence < 0 || sequence >= count) return;
    const u64 there = sequences.addresses[sequence] + (step * vectors + vector) * BYTES;
    const u64 here = packed + (row * vectors + vector) * BYTES;
    u32 words[BYTES / 4 ? BYTES / 4 : 1];
    load_words<BYTES / 4>(PACK ? there : here, words);
    store_words<BYTES / 4>(PACK ? here : there, words);
}

extern "C" __global__ void __launch_bounds__(THREADS) pack(
    const Sequences sequences, long long steps, u64 packed, long long vectors, long long first, long long count) {
    copy_rows<true>(sequences, steps, packed, vectors, first, count);
}

extern "C" __global__ void __launch_bounds__(THREADS) unpack(
    const Sequences sequences, long long steps, u64 packed, long long vectors, long long first, long long count) {
    copy_rows<false>(sequences, steps, packed, vectors, first, count);
}

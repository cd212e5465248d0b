// Tensors in their storage dtype, computed with in float32.
//
// Macros, from mixprec/backends/cuda/kernels.py: STORAGE and OTHER, each a Dtype, the second for kernels that read or
// write another one, too; WIDTH, the number of neighbouring elements that a thread has; THREADS of a block, a power of
// two. With WIDTH above 1 all addresses are multiples of 16, and rows of elements have whole numbers of groups of WIDTH.

template <int D>
constexpr int SIZE = D == FLOAT32 ? 4 : 2;  // bytes

// W numbers, from words.
template <int D, int W>
__device__ __forceinline__ void widen(const u32* words, float* x) {
#pragma unroll
    for (int k = 0; k < W; ++k) {
        if constexpr (D == FLOAT32) {
            x[k] = __uint_as_float(words[k]);
        } else {
            x[k] = widened(D, static_cast<u16>(words[k / 2] >> k % 2 * 16));
        }
    }
}

// To words, rounded to nearest, ties to even.
template <int D, int W>
__device__ __forceinline__ void narrow(const float* x, u32* words) {
    if constexpr (D == FLOAT32) {
#pragma unroll
        for (int k = 0; k < W; ++k) words[k] = __float_as_uint(x[k]);
    } else if constexpr (W == 1) {
        words[0] = rounded(D, x[0]);
    } else {
#pragma unroll
        for (int k = 0; k < W; k += 2) words[k / 2] = rounded(D, x[k]) | static_cast<u32>(rounded(D, x[k + 1])) << 16;
    }
}

// Elements i to i + W.
template <int D = STORAGE, int W>
__device__ __forceinline__ void load(u64 address, long long i, float (&x)[W]) {
    constexpr int N = W * SIZE<D> / 4;
    u32 words[N ? N : 1];
    load_words<N>(address + i * SIZE<D>, words);
    widen<D, W>(words, x);
}

template <int D = STORAGE, int W>
__device__ __forceinline__ void store(u64 address, long long i, const float (&x)[W]) {
    constexpr int N = W * SIZE<D> / 4;
    u32 words[N ? N : 1];
    narrow<D, W>(x, words);
    store_words<N>(address + i * SIZE<D>, words);
}

// Numbers of 8 bits.
template <int W>
__device__ __forceinline__ void load_bytes(u64 address, long long i, u32 (&x)[W]) {
    if constexpr (W == 1) {
        x[0] = *reinterpret_cast<const u8*>(address + i);
    } else {
        u32 words[W / 4];
        load_words<W / 4>(address + i, words);
#pragma unroll
        for (int k = 0; k < W; ++k) x[k] = words[k / 4] >> k % 4 * 8 & 0xff;
    }
}

template <int W>
__device__ __forceinline__ void store_bytes(u64 address, long long i, const u32 (&x)[W]) {
    if constexpr (W == 1) {
        *reinterpret_cast<u8*>(address + i) = static_cast<u8>(x[0]);
    } else {
        u32 words[W / 4];
#pragma unroll
        for (int k = 0; k < W; k += 4) words[k / 4] = x[k] | x[k + 1] << 8 | x[k + 2] << 16 | x[k + 3] << 24;
        store_words<W / 4>(address + i, words);
    }
}

// W neighbouring elements as they are in memory, where they take fewer registers than as numbers.
template <int W>
struct ElementsOf {
    static constexpr int N = W * SIZE<STORAGE> / 4;
    u32 words[N ? N : 1];

    __device__ __forceinline__ void load(u64 address, long long i) { load_words<N>(address + i * SIZE<STORAGE>, words); }

    __device__ __forceinline__ float operator[](int k) const {
        if constexpr (STORAGE == FLOAT32) return __uint_as_float(words[k]);
        return widened(STORAGE, static_cast<u16>(words[k / 2] >> k % 2 * 16));
    }
};

using Elements = ElementsOf<WIDTH>;

// W neighbouring numbers of 8 bits, as they are in memory.
template <int W>
struct BytesOf {
    static constexpr int N = W / 4;
    u32 words[N ? N : 1];

    __device__ __forceinline__ void load(u64 address, long long i) {
        if constexpr (N == 0) {
            words[0] = *reinterpret_cast<const u8*>(address + i);
        } else {
            load_words<N>(address + i, words);
        }
    }

    __device__ __forceinline__ u32 operator[](int k) const { return words[k / 4] >> k % 4 * 8 & 0xff; }
};

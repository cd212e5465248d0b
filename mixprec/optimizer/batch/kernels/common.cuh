// What the kernels of the batched update share, on top of words.cuh and philox.cuh of mixprec/backends/kernels.
// mixprec/optimizer/batch/kernel_program.py puts the programs of the parameters after this file: Program<P> is the code of
// an update rule and its hooks. Every block has one chunk of one parameter.
//
// Macros from there: THREADS of a block, CHUNK elements of a chunk, MAX_STATES, MAX_NUMBERS, MAX_POINTS, PROGRAMS, and CARRIES: whether a rule has
// numbers that it carries from step to step.

// Elements for a thread at once. An update writes 16 bytes of float32, so that a warp writes whole lines; a check, which
// reads only, has as much under way with 16 bytes of a 16-bit type.
constexpr int CHECK_WIDTH = 8;
constexpr int UPDATE_WIDTH = 4;
constexpr int MIN_BLOCKS = 2;  // with more at a time the compiler spills registers

// What may be another one in every step. Addresses are numbers; 0 is "none".
struct Moving {
    u64 grad;    // its lowest bit says that it is a float, though the row has another dtype
    u64 factor;  // what the gradient was multiplied by; its lowest bit says that it is a double
};

struct Restore {  // by a skipped step
    u64 now;
    u64 before;
    long long bytes;
};

struct Row {
    u64 half;  // in `dtype`; 0 if the master is the parameter itself
    u64 master;
    u64 states[MAX_STATES];
    u64 carried;  // doubles that go on from step to step; 0 if the rule has none
    long long size;
    int dtype;  // of gradient and half parameter
    int program;
    int values;  // index of its first number in `values`: t, then hyperparameters
    int first_chunk;
    int chunks;
    int padding;
};

struct Chunk {
    int entry;
    int number;
};

struct Sums {  // of squares
    double param;
    double grad;
};

struct Norms {
    float param;
    float grad;
};

struct Job {
    Row row;
    u64 grad;
    bool grad_is_float;
    float inverse;
    u32 entry;
    u64 seed;
    u64 step;
    const Norms* norms;  // MAX_POINTS of them
};

template <int W>
struct Width {
    static constexpr int value = W;
};

template <int W>
__device__ __forceinline__ void load(u64 address, long long i, float (&x)[W]) {
    address += i * sizeof(float);
    if constexpr (W == 1) {
        load_one(address, x[0]);
    } else {
#pragma unroll
        for (int k = 0; k < W; k += 4) load_four(address + k * sizeof(float), x + k);
    }
}

template <int W>
__device__ __forceinline__ void load(u64 address, long long i, u16 (&x)[W]) {
    address += i * sizeof(u16);
    if constexpr (W == 1) {
        load_one(address, x[0]);
    } else {
        u32 pairs[W / 2];
        if constexpr (W == 4) {
            load_two(address, pairs);
        } else {
            load_four(address, pairs);
        }
#pragma unroll
        for (int k = 0; k < W; ++k) x[k] = pairs[k / 2] >> k % 2 * 16;
    }
}

template <int W>
__device__ __forceinline__ void store(u64 address, long long i, const float (&x)[W]) {
    address += i * sizeof(float);
    if constexpr (W == 1) {
        store_one(address, x[0]);
    } else {
        static_assert(W == 4);
        store_four(address, x);
    }
}

template <int W>
__device__ __forceinline__ void store(u64 address, long long i, const u16 (&x)[W]) {
    address += i * sizeof(u16);
    if constexpr (W == 1) {
        store_one(address, x[0]);
    } else {
        static_assert(W == 4);
        const u32 pairs[] = {x[0] | static_cast<u32>(x[1]) << 16, x[2] | static_cast<u32>(x[3]) << 16};
        store_two(address, pairs);
    }
}

// Runs body(Width, index) over the elements of a chunk, WIDTH at once where all arrays are aligned to 16 bytes.
template <int WIDTH, class Body>
__device__ __forceinline__ void for_each_group(const Job& job, int chunk, Body body) {
    u64 addresses = job.grad | job.row.half | job.row.master;
#pragma unroll
    for (int s = 0; s < MAX_STATES; ++s) addresses |= job.row.states[s];
    const long long begin = static_cast<long long>(chunk) * CHUNK;
    const long long end = begin + CHUNK < job.row.size ? begin + CHUNK : job.row.size;
    const long long whole = addresses % 16 == 0 ? begin + (end - begin) / WIDTH * WIDTH : begin;
    for (long long i = begin + threadIdx.x * WIDTH; i < whole; i += THREADS * WIDTH) body(Width<WIDTH>(), i);
    for (long long i = whole + threadIdx.x; i < end; i += THREADS) body(Width<1>(), i);
}

// Two standard normal numbers from two random words, by Box and Muller.
__device__ __forceinline__ void normals(u32 a, u32 b, float& first, float& second) {
    const float radius = sqrtf(-2.0f * logf(static_cast<float>(a) * 0x1p-32f + 0x1p-33f));
    float sine, cosine;
    sincospif(static_cast<float>(b) * 0x1p-31f, &sine, &cosine);
    first = radius * cosine;
    second = radius * sine;
}

// Noise of hook number `hook` for elements i to i + W: of nothing but seed, entry, step and element.
template <int W>
__device__ __forceinline__ void draw(const Job& job, int hook, long long i, float (&noise)[W]) {
    const u32 key0 = static_cast<u32>(job.seed), key1 = static_cast<u32>(job.seed >> 32) ^ static_cast<u32>(hook);
#pragma unroll
    for (int part = 0; part < (W + 3) / 4; ++part) {
        const u32 quad = static_cast<u32>(i / 4) + part;
        u32 words[4] = {quad, job.entry, static_cast<u32>(job.step), static_cast<u32>(job.step >> 32)};
        philox(words, key0, key1);
        float four[4];
        normals(words[0], words[1], four[0], four[1]);
        normals(words[2], words[3], four[2], four[3]);
        if constexpr (W == 1) {
            const int k = i % 4;
            noise[0] = k == 0 ? four[0] : k == 1 ? four[1] : k == 2 ? four[2] : four[3];
        } else {
#pragma unroll
            for (int k = 0; k < 4; ++k) noise[part * 4 + k] = four[k];
        }
    }
}

__device__ __forceinline__ Sums warp_sum(Sums sums) {
#pragma unroll
    for (int lanes = WARP / 2; lanes; lanes /= 2) {
        sums.param += __shfl_xor_sync(0xffffffffu, sums.param, lanes);
        sums.grad += __shfl_xor_sync(0xffffffffu, sums.grad, lanes);
    }
    return sums;
}

// The sum over the threads of a block, in the same order every time; every thread gets it.
__device__ __forceinline__ Sums block_sum(Sums sums) {
    __shared__ Sums of_warps[THREADS / WARP];
    sums = warp_sum(sums);
    __syncthreads();  // a former sum may still be read
    if (threadIdx.x % WARP == 0) of_warps[threadIdx.x / WARP] = sums;
    __syncthreads();
    Sums total = {0, 0};
#pragma unroll
    for (int w = 0; w < THREADS / WARP; ++w) {
        total.param += of_warps[w].param;
        total.grad += of_warps[w].grad;
    }
    return total;
}

__device__ __forceinline__ float inverse_of(u64 factor) {
    if (factor == 0) return 1.0f;
    if (factor & 1) return 1.0f / static_cast<float>(*reinterpret_cast<const double*>(factor - 1));
    return 1.0f / *reinterpret_cast<const float*>(factor);
}

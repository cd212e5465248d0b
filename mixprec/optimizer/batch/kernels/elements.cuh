// From gradients and parameters in memory to what update rules see. This file comes after the programs.

// Calls body(Program<P>()) with P = program.
template <int P = 0, class Body>
__device__ __forceinline__ void with_program(int program, Body body) {
    if constexpr (P < PROGRAMS) {
        if (program == P) {
            body(Program<P>());
        } else {
            with_program<P + 1>(program, body);
        }
    }
}

// The numbers of a step, each computed in double precision by a thread. Every thread of the block comes here.
template <class P>
__device__ __forceinline__ void compute_numbers(
    int count, const double* values, u64 carried, long long applied, float* numbers) {
    const double* const own = reinterpret_cast<const double*>(carried);
    for (int n = threadIdx.x; n < count; n += THREADS) {
        numbers[n] = P::number(n, values, own, static_cast<double>(applied));
    }
    __syncthreads();
}

// W elements as they are in memory. They are loaded all together, before anything is computed: a thread then waits for
// memory once.
template <int W>
struct Loaded {
    float master[W];
    u16 half[W];
    u32 grad[W];  // float32, or two 16-bit numbers in each of the first half
};

template <int W>
__device__ __forceinline__ void load_halves(const Job& job, long long i, Loaded<W>& loaded) {
    if (job.row.half) load(job.row.half, i, loaded.half);
}

template <int W>
__device__ __forceinline__ void load_grads(const Job& job, long long i, Loaded<W>& loaded) {
    if (job.grad && job.grad_is_float) load_words<W>(job.grad + i * 4, loaded.grad);
    if (job.grad && !job.grad_is_float) load_words<W / 2>(job.grad + i * 2, loaded.grad);
}

// Masters, after they have taken over what was written into half parameters.
template <int W>
__device__ __forceinline__ void params_of(const Job& job, const Loaded<W>& loaded, float (&param)[W]) {
#pragma unroll
    for (int k = 0; k < W; ++k) param[k] = loaded.master[k];
    if (!job.row.half) return;
#pragma unroll
    for (int k = 0; k < W; ++k) {
        const u16 half = loaded.half[k];
        if (half != rounded(job.row.dtype, param[k])) param[k] = widened(job.row.dtype, half);
    }
}

// Gradients, unscaled; zeros if there are none.
template <int W>
__device__ __forceinline__ void grads_of(const Job& job, const Loaded<W>& loaded, float (&grad)[W]) {
#pragma unroll
    for (int k = 0; k < W; ++k) {
        const u16 half = loaded.grad[k / 2] >> k % 2 * 16;
        grad[k] = job.grad_is_float ? __uint_as_float(loaded.grad[k]) : widened(job.row.dtype, half);
        grad[k] = job.grad ? grad[k] * job.inverse : 0;
    }
}

// The hooks up to, but not including, the one that needs norms number `points`.
template <class P, int W>
__device__ __forceinline__ void run_hooks(
    const Job& job, int points, const float* numbers, long long i, const float (&param)[W], float (&grad)[W]) {
    float noise[P::NOISES ? P::NOISES : 1][W];
#pragma unroll
    for (int hook = 0; hook < P::NOISES; ++hook) draw(job, hook, i, noise[hook]);
#pragma unroll
    for (int k = 0; k < W; ++k) {
        float own[P::NOISES ? P::NOISES : 1];
#pragma unroll
        for (int hook = 0; hook < P::NOISES; ++hook) own[hook] = noise[hook][k];
        P::hooks(points, numbers, job.norms, own, param[k], grad[k]);
    }
}

template <class P, int W>
struct States {
    float of[P::STATES ? P::STATES : 1][W];
};

template <class P, int W>
__device__ __forceinline__ void load_states(const Job& job, long long i, States<P, W>& states) {
#pragma unroll
    for (int s = 0; s < P::STATES; ++s) load(job.row.states[s], i, states.of[s]);
}

template <class P, int W>
__device__ __forceinline__ void store_states(const Job& job, long long i, const States<P, W>& states) {
#pragma unroll
    for (int s = 0; s < P::STATES; ++s) store(job.row.states[s], i, states.of[s]);
}

// Runs body(k, states) for W elements, the states of each together.
template <class P, int W, class Body>
__device__ __forceinline__ void with_states(States<P, W>& states, Body body) {
#pragma unroll
    for (int k = 0; k < W; ++k) {
        float own[P::STATES ? P::STATES : 1];
#pragma unroll
        for (int s = 0; s < P::STATES; ++s) own[s] = states.of[s][k];
        body(k, own);
#pragma unroll
        for (int s = 0; s < P::STATES; ++s) states.of[s][k] = own[s];
    }
}

// What the block has to do, in shared memory: it would take 40 registers of every thread.
__device__ __forceinline__ const Job& job_of(
    const Chunk& chunk, const Moving* moving, const double* values, const Row* rows, u64 seed, long long applied,
    const Norms* norms) {
    __shared__ Job job;
    if (threadIdx.x == 0) {
        job.row = rows[chunk.entry];
        job.grad = moving[chunk.entry].grad & ~1ull;
        job.grad_is_float = moving[chunk.entry].grad & 1 || job.row.dtype == FLOAT32;
        job.inverse = inverse_of(moving[chunk.entry].factor);
        job.entry = chunk.entry;
        job.seed = seed;
        job.step = static_cast<u64>(values[job.row.values]) + applied;
        job.norms = norms + static_cast<long long>(chunk.entry) * MAX_POINTS;
    }
    __syncthreads();
    return job;
}

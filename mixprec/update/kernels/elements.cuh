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
__device__ __forceinline__ void compute_numbers(int count, const double* values, long long applied, float* numbers) {
    for (int n = threadIdx.x; n < count; n += THREADS) numbers[n] = P::number(n, values, static_cast<double>(applied));
    __syncthreads();
}

// Masters, after they have taken over what somebody wrote into the copies.
template <int W>
__device__ __forceinline__ void load_params(const Job& job, long long i, float (&param)[W]) {
    load(job.row.master, i, param);
    if (job.row.copy) {
        u16 copy[W];
        load(job.row.copy, i, copy);
#pragma unroll
        for (int k = 0; k < W; ++k) {
            if (copy[k] != rounded(job.row.dtype, param[k])) param[k] = widened(job.row.dtype, copy[k]);
        }
    }
}

// Gradients, unscaled; zeros if there are none.
template <int W>
__device__ __forceinline__ void load_grads(const Job& job, long long i, float (&grad)[W]) {
    if (!job.grad) {
#pragma unroll
        for (int k = 0; k < W; ++k) grad[k] = 0;
        return;
    }
    if (job.row.dtype == FLOAT32) {
        load(job.grad, i, grad);
    } else {
        u16 bits[W];
        load(job.grad, i, bits);
#pragma unroll
        for (int k = 0; k < W; ++k) grad[k] = widened(job.row.dtype, bits[k]);
    }
#pragma unroll
    for (int k = 0; k < W; ++k) grad[k] *= job.inverse;
}

// The hooks up to, but not including, the one that needs norms number `points`.
template <class P, int W>
__device__ __forceinline__ void run_hooks(
    const Job& job, int points, long long i, const float (&param)[W], float (&grad)[W]) {
    float noise[P::NOISES ? P::NOISES : 1][W];
#pragma unroll
    for (int hook = 0; hook < P::NOISES; ++hook) draw(job, hook, i, noise[hook]);
#pragma unroll
    for (int k = 0; k < W; ++k) {
        float own[P::NOISES ? P::NOISES : 1];
#pragma unroll
        for (int hook = 0; hook < P::NOISES; ++hook) own[hook] = noise[hook][k];
        P::hooks(points, job.numbers, job.norms, own, param[k], grad[k]);
    }
}

// Runs body(param, grad, states) for W elements, the states by value, and writes them back if `keep`.
template <class P, int W, class Body>
__device__ __forceinline__ void with_states(const Job& job, long long i, bool keep, Body body) {
    float states[P::STATES ? P::STATES : 1][W];
#pragma unroll
    for (int s = 0; s < P::STATES; ++s) load(job.row.states[s], i, states[s]);
#pragma unroll
    for (int k = 0; k < W; ++k) {
        float own[P::STATES ? P::STATES : 1];
#pragma unroll
        for (int s = 0; s < P::STATES; ++s) own[s] = states[s][k];
        body(k, own);
#pragma unroll
        for (int s = 0; s < P::STATES; ++s) states[s][k] = own[s];
    }
    if (!keep) return;
#pragma unroll
    for (int s = 0; s < P::STATES; ++s) store(job.row.states[s], i, states[s]);
}

// What the block has to do, in shared memory: it would take 40 registers of every thread.
__device__ __forceinline__ const Job& job_of(
    const Chunk& chunk, const Moving* moving, const double* values, const Row* rows, u64 seed, long long applied,
    const float* numbers, const Norms* norms) {
    __shared__ Job job;
    if (threadIdx.x == 0) {
        job.row = rows[chunk.entry];
        job.grad = moving[chunk.entry].grad;
        job.inverse = inverse_of(moving[chunk.entry].factor);
        job.entry = chunk.entry;
        job.seed = seed;
        job.step = static_cast<u64>(values[job.row.values]) + applied;
        job.numbers = numbers;
        job.norms = norms + static_cast<long long>(chunk.entry) * MAX_POINTS;
    }
    __syncthreads();
    return job;
}

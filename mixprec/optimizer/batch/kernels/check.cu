// Are all gradients finite, unscaled and after hooks? And the norms that hooks and rules ask for.
//
// One launch if no hook or rule needs norms. Otherwise launch number `stage` sums up what the hooks number `stage` that need
// norms want to know, one hook of each parameter.

enum Summing { NOTHING, EACH, ALL };

// The last hook of a parameter, if it needs norms, has linear code: it leaves a gradient finite if it leaves these two.
template <class P>
__device__ __forceinline__ bool stays_finite(const double* values, long long applied, const Norms& norms) {
    float numbers[P::NUMBERS ? P::NUMBERS : 1];
#pragma unroll
    for (int n = 0; n < P::HOOK_NUMBERS; ++n) {
        numbers[n] = P::number(n, values, nullptr, static_cast<double>(applied));
    }
    float sum = norms.grad, difference = norms.grad;
    P::last_hook(numbers, norms, norms.param, sum);
    P::last_hook(numbers, norms, -norms.param, difference);
    return isfinite(sum) && isfinite(difference);
}

// From the sums of chunks to norms, in the last block. Returns whether they are fit for use.
__device__ __forceinline__ bool finish_norms(
    const double* values, const Row* rows, int entries, long long applied, Sums* partial, Norms* norms, int stage,
    int summing) {
    const int lane = threadIdx.x % WARP;
    for (int e = threadIdx.x / WARP; e < entries; e += THREADS / WARP) {
        const volatile Sums* chunks = partial + rows[e].first_chunk;
        Sums sums = {0, 0};
#pragma unroll 1
        for (int c = lane; c < rows[e].chunks; c += WARP) {
            sums.param += chunks[c].param;
            sums.grad += chunks[c].grad;
        }
        sums = warp_sum(sums);
        if (lane == 0) {
            norms[e * MAX_POINTS + stage] = {static_cast<float>(sqrt(sums.param)), static_cast<float>(sqrt(sums.grad))};
            partial[rows[e].first_chunk] = sums;
        }
    }
    __syncthreads();
    if (summing == ALL) {
        Sums sums = {0, 0};
#pragma unroll 1
        for (int e = threadIdx.x; e < entries; e += THREADS) sums.grad += partial[rows[e].first_chunk].grad;
        const float norm = static_cast<float>(sqrt(block_sum(sums).grad));
#pragma unroll 1
        for (int e = threadIdx.x; e < entries; e += THREADS) norms[e * MAX_POINTS + stage].grad = norm;
    }
    __syncthreads();
    bool fit = true;
#pragma unroll 1
    for (int e = threadIdx.x; e < entries; e += THREADS) {
        with_program(rows[e].program, [&](auto program) {
            using P = decltype(program);
            if constexpr (P::UPDATES && P::ENDS_WITH_NORMS) {
                if (stage == P::POINTS - 1) {
                    fit = stays_finite<P>(values + rows[e].values, applied, norms[e * MAX_POINTS + stage]) && fit;
                }
            }
        });
    }
    return fit;
}

// Below these limits no elementwise hook makes inf or NaN: each adds to a gradient no more than the product of a number
// and a parameter, or of a number and a random one, or limits it. Most of the time nothing has to be computed then, and
// of a half parameter no master is read. Above them hooks run as in an update.
[[maybe_unused]] constexpr float SMALL_NUMBER = 0x1p40f, SMALL_PARAM = 0x1p20f, SMALL_GRAD = 0x1p60f;

template <class P>
__device__ __forceinline__ bool numbers_are_small(const float* numbers) {
    bool small = true;
#pragma unroll
    for (int n = 0; n < P::HOOK_NUMBERS; ++n) small = fabsf(numbers[n]) <= SMALL_NUMBER && small;
    return small;
}

// Whether gradients and parameters are small; what has not been loaded is taken to be.
template <class P, int W>
__device__ __forceinline__ bool are_small(const Job& job, const Loaded<W>& loaded, const float (&grad)[W]) {
    bool small = true;
#pragma unroll
    for (int k = 0; k < W; ++k) {
        small = fabsf(grad[k]) <= SMALL_GRAD && small;
        if constexpr (P::LOOKS_AT_PARAM) {
            const float param = job.row.half ? widened(job.row.dtype, loaded.half[k]) : loaded.master[k];
            small = fabsf(param) <= SMALL_PARAM && small;
        }
    }
    return small;
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) check(
    const Moving* moving, const Restore* restores, const double* values, const Row* rows, const Chunk* chunks,
    long long entries, long long chunk_count, long long seed, const long long* applied, u32* ticket, Norms* norms,
    Sums* partial, bool* found, bool* skip, long long stage, long long summing, long long last) {
    __shared__ float numbers[MAX_NUMBERS];
    bool finite = true;
    if (blockIdx.x < chunk_count) {
        const Chunk chunk = chunks[blockIdx.x];
        const Job& job = job_of(chunk, moving, values, rows, seed, *applied, norms);
        double param_sum = 0, grad_sum = 0;  // in which no square of a float overflows or vanishes
        with_program(job.row.program, [&](auto program) {
            using P = decltype(program);
            if (stage >= P::PASSES) return;
            const bool steps = P::STEPS && stage == P::POINTS - 1;
            compute_numbers<P>(
                steps ? P::NUMBERS : P::HOOK_NUMBERS, values + job.row.values, job.row.carried, *applied, numbers);
            constexpr bool QUICK = P::UPDATES && !P::POINTS;
            const bool quick = QUICK && numbers_are_small<P>(numbers);
            for_each_group<CHECK_WIDTH>(job, chunk.number, [&](auto width, long long i) {
                constexpr int W = decltype(width)::value;
                Loaded<W> loaded;
                States<P, W> states;
                if constexpr (P::LOOKS_AT_PARAM) {
                    load_halves(job, i, loaded);
                    if (!quick || !job.row.half) load(job.row.master, i, loaded.master);
                }
                load_grads(job, i, loaded);
                if constexpr (P::STEPS) {
                    if (steps) load_states(job, i, states);
                }
                float param[W] = {}, grad[W];
                grads_of(job, loaded, grad);
                if constexpr (QUICK) {
                    if (quick && are_small<P>(job, loaded, grad)) return;
                }
                if constexpr (P::LOOKS_AT_PARAM) {
                    if (quick && job.row.half) load(job.row.master, i, loaded.master);
                    params_of(job, loaded, param);
                }
#pragma unroll
                for (int k = 0; k < W; ++k) finite = isfinite(grad[k]) && finite;
                if constexpr (P::UPDATES || P::POINTS) {
                    run_hooks<P>(job, stage, numbers, i, param, grad);
                    if constexpr (P::UPDATES) {
#pragma unroll
                        for (int k = 0; k < W; ++k) finite = isfinite(grad[k]) && finite;
                    }
                    if constexpr (P::STEPS) {
                        if (steps) {
                            with_states(states, [&](int k, float* own) {
                                grad[k] = P::step(numbers, param[k], grad[k], own);
                            });
                        }
                    }
                    if (stage < P::POINTS) {
#pragma unroll
                        for (int k = 0; k < W; ++k) {
                            param_sum += static_cast<double>(param[k]) * param[k];
                            grad_sum += static_cast<double>(grad[k]) * grad[k];
                        }
                    }
                }
            });
        });
        if (summing != NOTHING) {
            const Sums sums = block_sum({param_sum, grad_sum});
            if (threadIdx.x == 0) partial[blockIdx.x] = sums;
        }
    }
    if (__syncthreads_or(!finite) && threadIdx.x == 0) *found = true;
    if (!is_last_block(ticket, gridDim.x)) return;
    if (summing != NOTHING) {
        const bool fit = finish_norms(values, rows, entries, *applied, partial, norms, stage, summing);
        if (__syncthreads_or(!fit) && threadIdx.x == 0) *found = true;
    }
    if (last && threadIdx.x == 0) {
        *skip = *const_cast<volatile bool*>(found);
        *found = false;
    }
}

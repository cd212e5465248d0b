// The update of every parameter, or of none: then arrays that the forward pass has moved are as before. At its end
// numbers that rules carry, counters and loss scale advance.

template <int W>
__device__ __forceinline__ void zero_grads(const Job& job, long long i) {
    if (job.grad_is_float) {
        const float zeros[W] = {};
        store(job.grad, i, zeros);
    } else {
        const u16 zeros[W] = {};
        store(job.grad, i, zeros);
    }
}

// Small arrays, of any type: running statistics.
__device__ __forceinline__ void restore(const Restore& array) {
    u8* const now = reinterpret_cast<u8*>(array.now);
    const u8* const before = reinterpret_cast<const u8*>(array.before);
#pragma unroll 1
    for (long long i = threadIdx.x; i < array.bytes; i += THREADS) now[i] = before[i];
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) update(
    const Moving* moving, const Restore* restores, const double* values, const Row* rows, const Chunk* chunks,
    long long entries, long long chunk_count, long long seed, long long* applied, u32* ticket, const Norms* norms,
    long long restore_count, const bool* skip, const bool* other_skip, long long zero, COUNTER_PARAMETERS,
    SCALE_PARAMETERS) {
    __shared__ float numbers[MAX_NUMBERS];
    const bool skips = *skip || (other_skip && *other_skip);
    if (blockIdx.x < chunk_count) {
        const Chunk chunk = chunks[blockIdx.x];
        const Job& job = job_of(chunk, moving, values, rows, seed, *applied, norms);
        if (!skips) {
            with_program(job.row.program, [&](auto program) {
                using P = decltype(program);
                if constexpr (P::UPDATES) {
                    compute_numbers<P>(P::NUMBERS, values + job.row.values, job.row.carried, *applied, numbers);
                    for_each_group<UPDATE_WIDTH>(job, chunk.number, [&](auto width, long long i) {
                        constexpr int W = decltype(width)::value;
                        Loaded<W> loaded;
                        States<P, W> states;
                        load(job.row.master, i, loaded.master);
                        load_halves(job, i, loaded);
                        load_grads(job, i, loaded);
                        load_states(job, i, states);
                        float param[W], grad[W];
                        params_of(job, loaded, param);
                        grads_of(job, loaded, grad);
                        run_hooks<P>(job, P::POINTS, numbers, i, param, grad);
                        with_states(states, [&](int k, float* own) {
                            P::rule(numbers, job.norms, param[k], grad[k], own);
                        });
                        store_states(job, i, states);
                        store(job.row.master, i, param);
                        if (job.row.half) {
                            u16 half[W];
#pragma unroll
                            for (int k = 0; k < W; ++k) half[k] = rounded(job.row.dtype, param[k]);
                            store(job.row.half, i, half);
                        }
                    });
                }
            });
        }
        if (zero && job.grad) {
            for_each_group<UPDATE_WIDTH>(job, chunk.number, [&](auto width, long long i) {
                zero_grads<decltype(width)::value>(job, i);
            });
        }
    }
    if (skips && blockIdx.x >= chunk_count && blockIdx.x < chunk_count + restore_count) {
        restore(restores[blockIdx.x - chunk_count]);
    }
    if (!is_last_block(ticket, gridDim.x)) return;
    if constexpr (CARRIES) {  // all blocks have used what was there
        for (int e = threadIdx.x; e < entries && !skips; e += THREADS) {
            with_program(rows[e].program, [&](auto program) {
                using P = decltype(program);
                if constexpr (P::CARRIED) P::carry(values + rows[e].values, reinterpret_cast<double*>(rows[e].carried));
            });
        }
    }
    if (threadIdx.x != 0) return;
    if (!skips) *applied += 1;
    advance_counter(skips, COUNTER_ARGUMENTS);
    advance_scale(skips, SCALE_ARGUMENTS);
}

// What takes numbers of channels only: to finish statistics that come from elsewhere.

// From what `size` processes have found of their own rows, (size, 3, channels): count, mean, 1 / standard deviation.
extern "C" __global__ void __launch_bounds__(THREADS) batch_norm_finalize_ranks(
    const float* found, long long size, long long channels, float* mean, float* invstd, float* count,
    float* running_mean, float* running_variance, double decay, double eps) {
    const int c = blockIdx.x * THREADS + threadIdx.x;
    if (c >= channels) return;
    Moments all = {};
    for (long long rank = 0; rank < size; ++rank) {
        const float* of = found + rank * 3 * channels + c;
        const float rows = of[0], inverse = of[2 * channels];
        const Moments own = {rows, of[channels], rows / inverse / inverse};
        if (rank == 0) {
            all = own;
        } else {
            all += own;
        }
    }
    const float variance = all.squares / all.count;
    mean[c] = all.mean;
    invstd[c] = invstd_of(variance, VARIANCE, static_cast<float>(eps));
    count[c] = all.count;
    Running{running_mean, running_variance, decay}.move(c, all.count, all.mean, variance);
}

// From the sums of dgamma and dbeta over `size` processes: their means, and `slope` and `offset` of dx.
extern "C" __global__ void __launch_bounds__(THREADS) batch_norm_backward_finalize_ranks(
    const float* sums, long long size, long long channels, const float* gamma, const float* invstds,
    const float* counts, float* dgamma, float* dbeta, float* slope, float* offset) {
    const int c = blockIdx.x * THREADS + threadIdx.x;
    if (c >= channels) return;
    const float of_gamma = sums[c], of_beta = sums[channels + c], scale = gamma[c] * invstds[c], count = counts[c];
    dgamma[c] = of_gamma / size;
    dbeta[c] = of_beta / size;
    slope[c] = -(scale * invstds[c] * of_gamma) / count;
    offset[c] = -(scale * of_beta) / count;
}

// Of arrays (images, channels, pixels), from the parts' sums of dy and of dy * (x - mean): dgamma and dbeta, and `slope`
// and `offset` of dx = scale * dy + slope * (x - mean) + offset.
extern "C" __global__ void __launch_bounds__(THREADS) batch_norm_planes_backward_finalize(
    const float* partial, long long parts, long long rows, long long channels, const float* gamma,
    const float* invstds, float* dgamma, float* dbeta, float* slope, float* offset) {
    const int c = blockIdx.x * COMBINED + threadIdx.x % COMBINED;
    Pair sums[1] = {};
    if (c < channels) {
#pragma unroll 4
        for (long long part = threadIdx.x / COMBINED; part < parts; part += THREADS / COMBINED) {
            const float* of = partial + part * 2 * channels + c;
            sums[0] += {of[0], of[channels]};
        }
    }
    reduce_columns(sums, COMBINED);
    if (threadIdx.x >= COMBINED || c >= channels) return;
    const ChannelGradients found = {dgamma, dbeta, slope, offset};
    found.finish(c, rows, gamma[c], invstds[c], sums[0].first, sums[0].second);
}

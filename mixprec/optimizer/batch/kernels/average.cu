// Moving averages of many arrays: one launch that finds how far they move, and one that moves them.

struct Part {
    u64 value, average;  // addresses
    long long elements;
};

// As TensorFlow's ExponentialMovingAverage with num_updates: the decay is small at first. A skipped step does not count.
extern "C" __global__ void __launch_bounds__(THREADS) weigh(const bool* skipped, long long* steps, float* weight,
                                                            double decay) {
    if (threadIdx.x != 0) return;
    if (skipped != nullptr && *skipped) {
        *weight = 0.0f;
        return;
    }
    const double n = static_cast<double>(*steps);
    *weight = static_cast<float>(1.0 - min(decay, (1.0 + n) / (10.0 + n)));
    *steps += 1;
}

extern "C" __global__ void __launch_bounds__(THREADS) average(const Part* parts, const float* weight) {
    const float w = *weight;
    if (w == 0.0f) return;
    const Part part = parts[blockIdx.x];
    const float* const value = reinterpret_cast<const float*>(part.value);
    float* const mean = reinterpret_cast<float*>(part.average);
#pragma unroll 4
    for (long long i = threadIdx.x; i < part.elements; i += THREADS) mean[i] = mean[i] + w * (value[i] - mean[i]);
}

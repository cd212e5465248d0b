// Cross entropies of logits (rows, classes), of the softmax or of each sigmoid. A row has `lanes` threads: a power of two
// up to a warp, or a block. They read it twice, the second time from a cache.

// Calls visit(number of the class, logit) for the part of a row that a thread has.
template <class Visit>
__device__ __forceinline__ void for_each_class(u64 x, long long row, int classes, int lanes, Visit visit) {
    for (int c = threadIdx.x % lanes * WIDTH; c < classes; c += lanes * WIDTH) {
        float logits[WIDTH];
        load(x, row * classes + c, logits);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) visit(c + k, logits[k]);
    }
}

__device__ __forceinline__ float weight_of(const float* class_weight, int c) {
    return class_weight ? class_weight[c] : 1.0f;
}

// The labels of a row and the share of the first one. Where images are not mixed there is one: `second` is null.
struct Labels {
    int first, second;
    float share;

    __device__ __forceinline__ Labels(const int* t, const int* seconds, const float* shares, long long shares_step,
                                      long long row, bool exists)
        : first(exists ? t[row] : 0), second(exists && seconds ? seconds[row] : first),
          share(exists && seconds ? shares[row * shares_step] : 1.0f) {}
};

// The classes that come before the label of a row: with larger logits, and the first ones of equal ones.
struct Before {
    int label, classes;  // that a thread has found
    bool known;
    float own[1];

    __device__ __forceinline__ Before(u64 x, long long row, int number, int label_, bool counts)
        : label(label_), classes(0), known(counts && 0 <= label_ && label_ < number), own{0.0f} {
        if (known) load(x, row * number + label, own);
    }

    __device__ __forceinline__ bool has(int c, float logit) const {
        return logit != logit ? own[0] == own[0] || c < label : logit > own[0] || (logit == own[0] && c < label);
    }
};

// What a loss has of all rows, by the last block: the mean over rows with a label that counts, its sum in the order of
// one block alone, and the share of them that are right, as `accuracy` has it. count is negative if it is to be found;
// without `mean` there is nothing to do. Two counters: of blocks, and of rows that are right.
__device__ __forceinline__ void finish(
    const float* losses, const int* t, const Before& before, int lanes, float* mean, float* factor, float* share,
    u32* counters, double count, long long rows, long long ignore_label) {
    if (!mean) return;
    const bool right = combined(before.classes, lanes, Sum()) == 0 && before.known && threadIdx.x % lanes == 0;
    const int of_block = combined(static_cast<int>(right), THREADS, Sum());
    if (threadIdx.x == 0 && of_block) atomicAdd(counters + 1, static_cast<u32>(of_block));
    if (!is_last_block(counters, gridDim.x)) return;
    const volatile float* found = losses;  // by all blocks
    double sum = 0;
    long long counted = 0;
#pragma unroll 4
    for (long long row = threadIdx.x; row < rows; row += THREADS) {
        sum += found[row];
        counted += t[row] != ignore_label;
    }
    sum = combined(sum, THREADS, Sum());
    counted = max(combined(counted, THREADS, Sum()), 1ll);
    if (threadIdx.x) return;
    volatile u32* all_right = counters + 1;
    *factor = static_cast<float>(1 / (count < 0 ? counted : count));
    *mean = static_cast<float>(sum) * *factor;
    *share = static_cast<float>(static_cast<double>(*all_right) / counted);
    *all_right = 0;
}

extern "C" __global__ void __launch_bounds__(THREADS) softmax_cross_entropy(
    u64 x, const int* t, const float* class_weight, float* losses, float* log_z, float* mean, float* factor,
    float* share, u32* counters, double count, const int* seconds, const float* shares, long long shares_step,
    long long rows, long long classes_, long long lanes_, long long ignore_label, double smoothing) {
    const int classes = classes_, lanes = lanes_;
    const long long row = static_cast<long long>(blockIdx.x) * (THREADS / lanes) + threadIdx.x / lanes;
    const int own = row < rows ? classes : 0;  // the others only come to where all threads of a warp have to
    const Labels labels(t, seconds, shares, shares_step, row, row < rows);
    Before before(x, row, classes, labels.first, mean && row < rows && labels.first != ignore_label);
    float largest = __uint_as_float(0xff800000);  // -inf
    for_each_class(x, row, own, lanes, [&](int, float logit) { largest = fmaxf(largest, logit); });
    largest = combined(largest, lanes, Largest());
    // All relative to the largest logit: nothing overflows, and all terms of a sum have one sign.
    float exponentials = 0, weights = 0, distances = 0, of_first = 0, of_second = 0;
    for_each_class(x, row, own, lanes, [&](int c, float logit) {
        exponentials += expf(logit - largest);
        before.classes += before.has(c, logit);
        if (c == labels.first) of_first = largest - logit;
        if (c == labels.second) of_second = largest - logit;
        if (smoothing) {
            const float weight = weight_of(class_weight, c);
            weights += weight;
            distances += weight * (largest - logit);
        }
    });
    exponentials = combined(exponentials, lanes, Sum());
    of_first = combined(of_first, lanes, Sum());
    if (seconds) of_second = combined(of_second, lanes, Sum());
    if (smoothing) {
        weights = combined(weights, lanes, Sum());
        distances = combined(distances, lanes, Sum());
    }
    if (row < rows && threadIdx.x % lanes == 0) {
        const float log_sum = logf(exponentials);
        float loss = 0;
        if (labels.first != ignore_label) {
            // What is not a class has no loss, but must not look as if it had one.
            const auto of = [&](int label, float distance) {
                const bool known = 0 <= label && label < classes;
                return known ? weight_of(class_weight, label) * (distance + log_sum) : __uint_as_float(0x7fffffff);
            };
            loss = of(labels.first, of_first);
            if (seconds) loss = labels.share * loss + (1 - labels.share) * of(labels.second, of_second);
            if (smoothing) {
                loss = static_cast<float>(1 - smoothing) * loss +
                       static_cast<float>(smoothing / classes) * (distances + log_sum * weights);
            }
        }
        losses[row] = loss;
        log_z[row] = largest + log_sum;
    }
    finish(losses, t, before, lanes, mean, factor, share, counters, count, rows, ignore_label);
}

// dlosses of all rows, or of one that stands for all: dlosses_step is 1 or 0. They are multiplied by *factor, if given.
extern "C" __global__ void __launch_bounds__(THREADS) softmax_cross_entropy_backward(
    const float* dlosses, const float* factor, u64 x, const int* t, const float* class_weight, const float* log_z, u64 dx,
    long long dlosses_step, const int* seconds, const float* shares, long long shares_step, long long rows,
    long long classes_, long long lanes_, long long ignore_label, double smoothing) {
    const int classes = classes_, lanes = lanes_;
    const long long row = static_cast<long long>(blockIdx.x) * (THREADS / lanes) + threadIdx.x / lanes;
    const bool exists = row < rows;
    const Labels labels(t, seconds, shares, shares_step, row, exists);
    float weights = 0;
    if (smoothing && class_weight) {
        if (exists) {
            for (int c = threadIdx.x % lanes; c < classes; c += lanes) weights += class_weight[c];
        }
        weights = combined(weights, lanes, Sum());
    } else if (smoothing) {
        weights = classes;
    }
    if (!exists) return;
    const auto target_of = [&](int label, float share) {
        const bool known = 0 <= label && label < classes;
        return static_cast<float>(1 - smoothing) * (known ? weight_of(class_weight, label) * share : 0.0f);
    };
    const float of_first = target_of(labels.first, labels.share);
    const float of_second = seconds ? target_of(labels.second, 1 - labels.share) : 0.0f;
    const float of_all = static_cast<float>(smoothing / classes);
    const float of_sum = of_first + of_second + of_all * weights;
    const float dloss = dlosses[row * dlosses_step] * (factor ? *factor : 1.0f), log_sum = log_z[row];
    for (int c = threadIdx.x % lanes * WIDTH; c < classes; c += lanes * WIDTH) {
        float value[WIDTH] = {};
        if (labels.first != ignore_label) {
            load(x, row * classes + c, value);
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) {
                // The derivative of -sum(q * log(p)) is p * sum(q) - q.
                float derivative = expf(value[k] - log_sum) * of_sum;
                if (smoothing) derivative -= of_all * weight_of(class_weight, c + k);
                if (c + k == labels.first) derivative -= of_first;
                if (c + k == labels.second) derivative -= of_second;
                value[k] = derivative * dloss;
            }
        }
        store(dx, row * classes + c, value);
    }
}

// The target of each class by itself. With a threshold, which is not infinite, it is 0 or 1.
struct Targets {
    Labels labels;
    float of_all, of_first, of_second, threshold;

    __device__ __forceinline__ Targets(const Labels& labels_, int classes, double smoothing, double threshold_)
        : labels(labels_), of_all(static_cast<float>(smoothing / classes)),
          of_first(static_cast<float>(1 - smoothing) * labels_.share),
          of_second(static_cast<float>(1 - smoothing) * (1 - labels_.share)),
          threshold(static_cast<float>(threshold_)) {}

    __device__ __forceinline__ float of(int c) const {
        float target = of_all;
        if (c == labels.first) target += of_first;
        if (c == labels.second) target += of_second;
        return threshold > 3e38f ? target : static_cast<float>(target > threshold);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS) binary_cross_entropy(
    u64 x, const int* t, float* losses, float* mean, float* factor, float* share, u32* counters, double count,
    const int* seconds, const float* shares, long long shares_step, long long rows, long long classes_,
    long long lanes_, long long ignore_label, double smoothing, double threshold) {
    const int classes = classes_, lanes = lanes_;
    const long long row = static_cast<long long>(blockIdx.x) * (THREADS / lanes) + threadIdx.x / lanes;
    const Labels labels(t, seconds, shares, shares_step, row, row < rows);
    const Targets targets(labels, classes, smoothing, threshold);
    Before before(x, row, classes, labels.first, mean && row < rows && labels.first != ignore_label);
    float sum = 0;
    for_each_class(x, row, row < rows ? classes : 0, lanes, [&](int c, float logit) {
        before.classes += before.has(c, logit);
        sum += fmaxf(logit, 0.0f) - logit * targets.of(c) + log1pf(expf(-fabsf(logit)));
    });
    sum = combined(sum, lanes, Sum());
    if (row < rows && threadIdx.x % lanes == 0) {
        const bool known = min(labels.first, labels.second) >= 0 && max(labels.first, labels.second) < classes;
        const float loss = known ? sum * static_cast<float>(1.0 / classes) : __uint_as_float(0x7fffffff);
        losses[row] = labels.first == ignore_label ? 0.0f : loss;
    }
    finish(losses, t, before, lanes, mean, factor, share, counters, count, rows, ignore_label);
}

extern "C" __global__ void __launch_bounds__(THREADS) binary_cross_entropy_backward(
    const float* dlosses, const float* factor, u64 x, const int* t, u64 dx, long long dlosses_step, const int* seconds,
    const float* shares, long long shares_step, long long rows, long long classes_, long long lanes_,
    long long ignore_label, double smoothing, double threshold) {
    const int classes = classes_, lanes = lanes_;
    const long long row = static_cast<long long>(blockIdx.x) * (THREADS / lanes) + threadIdx.x / lanes;
    if (row >= rows) return;
    const Labels labels(t, seconds, shares, shares_step, row, true);
    const Targets targets(labels, classes, smoothing, threshold);
    const float dloss = dlosses[row * dlosses_step] * (factor ? *factor : 1.0f) * static_cast<float>(1.0 / classes);
    for (int c = threadIdx.x % lanes * WIDTH; c < classes; c += lanes * WIDTH) {
        float value[WIDTH] = {};
        if (labels.first != ignore_label) {
            load(x, row * classes + c, value);
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) value[k] = (1 / (1 + expf(-value[k])) - targets.of(c + k)) * dloss;
        }
        store(dx, row * classes + c, value);
    }
}

// The share of rows that count whose label is their largest logit, `top` is 0, or among the `top` largest. Three counters:
// of blocks, of rows that are right, and of those that count.
extern "C" __global__ void __launch_bounds__(THREADS) accuracy(
    u64 x, const int* t, float* share, u32* counters, long long rows, long long classes_, long long lanes_,
    long long top, long long ignores, long long ignore_label) {
    const int classes = classes_, lanes = lanes_;
    const long long row = static_cast<long long>(blockIdx.x) * (THREADS / lanes) + threadIdx.x / lanes;
    const int label = row < rows ? t[row] : 0;
    const bool counts = row < rows && !(ignores && label == ignore_label);
    Before before(x, row, classes, label, counts);
    for_each_class(x, row, before.known ? classes : 0, lanes, [&](int c, float logit) {
        before.classes += top ? !(logit < before.own[0]) : before.has(c, logit);
    });
    const int above = combined(before.classes, lanes, Sum());
    if (threadIdx.x % lanes == 0 && counts) {
        if (before.known && above <= top) atomicAdd(counters + 1, 1u);
        atomicAdd(counters + 2, 1u);
    }
    if (!is_last_block(counters, gridDim.x) || threadIdx.x) return;
    volatile u32* found = counters;  // by all blocks
    const u32 right = found[1], counted = found[2];
    *share = static_cast<float>(static_cast<double>(right) / max(counted, 1u));
    found[1] = found[2] = 0;
}

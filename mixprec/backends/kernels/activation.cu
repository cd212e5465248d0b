// Activation functions, element by element, with Chainer's formulas. The last elements, fewer than WIDTH, one by one.

template <int W, class Function>
__device__ __forceinline__ void apply(u64 x, u64 y, long long i, Function function) {
    float value[W];
    load(x, i, value);
#pragma unroll
    for (int k = 0; k < W; ++k) value[k] = function(value[k]);
    store(y, i, value);
}

template <class Function>
__device__ __forceinline__ void forward(u64 x, u64 y, long long size, Function function) {
    const long long i = (static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x) * WIDTH;
    if (i + WIDTH <= size) {
        apply<WIDTH>(x, y, i, function);
    } else {
        for (long long k = i; k < size; ++k) apply<1>(x, y, k, function);
    }
}

// dx = gradient(value, dy), where value is that of x or y.
template <int W, class Gradient>
__device__ __forceinline__ void apply(u64 values, u64 dy, u64 dx, long long i, Gradient gradient) {
    float value[W], of_output[W];
    load(values, i, value);
    load(dy, i, of_output);
#pragma unroll
    for (int k = 0; k < W; ++k) value[k] = gradient(value[k], of_output[k]);
    store(dx, i, value);
}

template <class Gradient>
__device__ __forceinline__ void backward(u64 values, u64 dy, u64 dx, long long size, Gradient gradient) {
    const long long i = (static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x) * WIDTH;
    if (i + WIDTH <= size) {
        apply<WIDTH>(values, dy, dx, i, gradient);
    } else {
        for (long long k = i; k < size; ++k) apply<1>(values, dy, dx, k, gradient);
    }
}

// NaN stay.
__device__ __forceinline__ float positive(float x) { return x > 0 || x != x ? x : 0.0f; }

extern "C" __global__ void __launch_bounds__(THREADS) relu_forward(u64 x, u64 y, long long size, double) {
    forward(x, y, size, [](float value) { return positive(value); });
}

extern "C" __global__ void __launch_bounds__(THREADS) clipped_relu_forward(u64 x, u64 y, long long size, double coef) {
    const float ceiling = coef;
    forward(x, y, size, [=](float value) { return value > ceiling ? ceiling : positive(value); });
}

extern "C" __global__ void __launch_bounds__(THREADS) sigmoid_forward(u64 x, u64 y, long long size, double) {
    forward(x, y, size, [](float value) { return tanhf(value * 0.5f) * 0.5f + 0.5f; });
}

extern "C" __global__ void __launch_bounds__(THREADS) tanh_forward(u64 x, u64 y, long long size, double) {
    forward(x, y, size, [](float value) { return tanhf(value); });
}

extern "C" __global__ void __launch_bounds__(THREADS) relu_backward(u64 y, u64 dy, u64 dx, long long size, double) {
    backward(y, dy, dx, size, [](float value, float gradient) { return value > 0 ? gradient : 0.0f; });
}

extern "C" __global__ void __launch_bounds__(THREADS) clipped_relu_backward(
    u64 x, u64 dy, u64 dx, long long size, double coef) {
    const float ceiling = coef;
    backward(x, dy, dx, size, [=](float value, float gradient) {
        return value > 0 && value < ceiling ? gradient : 0.0f;
    });
}

extern "C" __global__ void __launch_bounds__(THREADS) sigmoid_backward(u64 y, u64 dy, u64 dx, long long size, double) {
    backward(y, dy, dx, size, [](float value, float gradient) { return gradient * value * (1 - value); });
}

extern "C" __global__ void __launch_bounds__(THREADS) tanh_backward(u64 y, u64 dy, u64 dx, long long size, double) {
    backward(y, dy, dx, size, [](float value, float gradient) { return gradient * (1 - value * value); });
}

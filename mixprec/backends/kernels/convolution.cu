// What convolutions need beside cuDNN.

// (rows, channels) with fewer or more of either: zeros where there was nothing. WIDTH elements of the target a thread.
extern "C" __global__ void __launch_bounds__(THREADS) resize_channels(
    u64 source, long long source_rows, long long source_channels, u64 target, long long target_rows,
    long long target_channels) {
    const long long i = (static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x) * WIDTH;
    if (i >= target_rows * target_channels) return;
    const long long row = i / target_channels, channel = i - row * target_channels;
    float value[WIDTH];
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) {
        float one[1] = {0.0f};
        if (row < source_rows && channel + k < source_channels) load(source, row * source_channels + channel + k, one);
        value[k] = one[0];
    }
    store(target, i, value);
}

// A gradient with zeros where the input or output of the ReLU was not above 0; may be written over itself.
extern "C" __global__ void __launch_bounds__(THREADS) relu_backward(
    u64 gradient, u64 input, u64 result, long long size) {
    const long long i = (static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x) * WIDTH;
    if (i >= size) return;
    float value[WIDTH], x[WIDTH];
    load(input, i, x);
    load(gradient, i, value);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) value[k] = x[k] > 0.0f ? value[k] : 0.0f;
    store(result, i, value);
}

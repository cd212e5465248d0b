// Images mixed with those of the same batch in reversed order, in float32 and rounded once; within a box the others alone.

extern "C" __global__ void __launch_bounds__(THREADS) mix_images(
    u64 x, u64 y, long long images, long long of_image, long long height, long long width, long long channels,
    long long top, long long left, long long bottom, long long right, double share_) {
    const float share = static_cast<float>(share_), rest = 1 - share;
    const long long image = blockIdx.x / of_image, size = height * width * channels;
    const long long i = (blockIdx.x % of_image * THREADS + threadIdx.x) * WIDTH;
    if (i >= size) return;
    float own[WIDTH], other[WIDTH];
    load(x, image * size + i, own);
    load(x, (images - 1 - image) * size + i, other);
    long long pixel = i / channels, row = pixel / width, column = pixel % width, channel = i % channels;
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) {
        const bool is_inside = top <= row && row < bottom && left <= column && column < right;
        // As it is at either end: infinity times 0 would be no number.
        if (is_inside || share == 0) own[k] = other[k];
        else if (share != 1) own[k] = own[k] * share + other[k] * rest;
        if (++channel == channels) {
            channel = 0;
            if (++column == width) column = 0, ++row;
        }
    }
    store(y, image * size + i, own);
}

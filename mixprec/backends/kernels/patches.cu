// The elements under a filter, for their second moments: a row for each of `rows` consecutive positions, for each group
// of channels apart. `place` is the first of the positions, counted from the first one of the image `image`.
//
// A thread writes WIDTH neighbouring elements of a row of `vectors` such. With WIDTH above 1 groups of channels have
// whole numbers of them, so that all are read at once, from one pixel, too. What is beyond R * S * C elements is 0, but
// for a 1 as the first, with `bias`.

extern "C" __global__ void __launch_bounds__(THREADS) patches(
    u64 x, u64 found, long long image, long long place, long long rows, long long groups,
    long long vectors, long long height, long long width, long long channels, long long places, long long columns,
    long long filter_rows, long long filter_columns, long long group_channels, long long stride_y, long long stride_x,
    long long pad_y, long long pad_x, long long dilation_y, long long dilation_x, long long bias) {
    const u32 i = blockIdx.x * THREADS + threadIdx.x;  // at most as many as a chunk has elements
    const u32 above = i / static_cast<u32>(vectors), group = above / static_cast<u32>(rows);
    if (group >= groups) return;
    const u32 first = (i - above * static_cast<u32>(vectors)) * WIDTH;
    const u32 position = static_cast<u32>(place) + (above - group * static_cast<u32>(rows));
    const u32 after = position / static_cast<u32>(places);
    const u32 pixel = position - after * static_cast<u32>(places), row = pixel / static_cast<u32>(columns);
    const u32 tap = first / static_cast<u32>(group_channels), r = tap / static_cast<u32>(filter_columns);
    const int y = int(row * stride_y + r * dilation_y - pad_y);
    const int across = int(
        (pixel - row * static_cast<u32>(columns)) * stride_x + (tap - r * static_cast<u32>(filter_columns)) * dilation_x -
        pad_x);
    float value[WIDTH] = {};
    if (r >= filter_rows) {
        if (bias && first == filter_rows * filter_columns * group_channels) value[0] = 1.0f;
    } else if (0 <= y && y < height && 0 <= across && across < width) {
        const long long channel = group * group_channels + (first - tap * static_cast<u32>(group_channels));
        load(x, (((image + after) * height + y) * width + across) * channels + channel, value);
    }
    store(found, static_cast<long long>(i) * WIDTH, value);
}

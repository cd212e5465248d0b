// Poolings of arrays (N, H, W, C).
#pragma once

#include "dtypes.h"

namespace native {

// What a pooling goes over: all sizes are positive but the number of channels.
struct PoolWindows {
    long images, height, width, channels, out_height, out_width;
    long rows, columns, down, right, top, left;  // of the window, its stride, and its padding
};

struct Pooling {
    void (*max_pool)(Dtype dtype, const void *x, const PoolWindows &windows, void *y, unsigned char *where);
    void (*max_pool_backward)(
        Dtype dtype, const void *dy, const unsigned char *where, const PoolWindows &windows, void *dx);
    void (*average_pool)(Dtype dtype, const void *x, const PoolWindows &windows, void *y);
    void (*average_pool_backward)(Dtype dtype, const void *dy, const PoolWindows &windows, void *dx);
    // The mean of `pixels` rows of each image.
    void (*global_average_pool)(Dtype dtype, const void *x, long images, long pixels, long channels, void *y);
};

}  // namespace native

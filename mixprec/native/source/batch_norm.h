// What batch normalizations compute: arrays (rows, C), vectors (C,) float32, sums (C,) float64.
#pragma once

#include "dtypes.h"

namespace native {

// A gradient behind a ReLU: dy + plus, rounded to the storage dtype, where the ReLU was open. Null is what is not
// there.
struct Gradient {
    const void *dy, *plus;
    const float *scale, *bias;  // the ReLU is open where scale * x + bias is above 0
    const unsigned char *mask;  // or where this is 1
};

// What is added: x, or scale * x + bias, rounded to the storage dtype. Without x nothing is.
struct Added {
    const void *x;
    const float *scale, *bias;
};

// x - mean, or null.
struct Centred {
    const void *x;
    const float *mean;
};

struct BatchNorm {
    // Means, and sums of squares of the deviations from them. Returns false where there is no memory.
    bool (*moments)(Dtype dtype, const void *x, long rows, long channels, double *means, double *squares);
    // y = scale * x + bias + added, then a ReLU, and its mask. What is not there is null.
    void (*affine)(Dtype dtype, const void *x, long rows, long channels, const float *scale, const float *bias,
                   const Added &added, bool relu, unsigned char *mask, void *y);
    // Sums of the products of the gradient with x, then with `other`, and of the gradient, which goes to g. All three
    // may be null; `other` needs g. Returns false where there is no memory.
    bool (*gradient_sums)(Dtype dtype, const Gradient &gradient, const Centred &x, const Centred &other, long rows,
                          long channels, void *g, double *products, double *sums);
    // dx = scale * gradient + (slope * (x - mean) + offset); without slope only the first term.
    void (*combine)(Dtype dtype, const Gradient &gradient, const void *x, long rows, long channels, const float *scale,
                    const float *mean, const float *slope, const float *offset, void *dx);
};

}  // namespace native

// What is computed element by element; all arrays are flat.
#pragma once

#include "dtypes.h"

namespace native {

struct Elementwise {
    // Rounds or widens; of and to are other dtypes.
    void (*convert)(Dtype of, const void *source, Dtype to, void *target, long size);
    void (*add)(Dtype dtype, const void *a, const void *b, void *sum, long size);
    void (*relu)(Dtype dtype, const void *x, void *y, long size);
    // dx = dy where y, of a ReLU, is above 0.
    void (*relu_backward)(Dtype dtype, const void *dy, const void *y, void *dx, long size);
    // x / (1 - ratio), or 0 where the random number of an element is below ratio * 2**32; see dropout.inl.
    void (*dropout)(Dtype dtype, const void *x, double ratio, uint64_t seed, uint64_t sequence, void *y, long size);
    // Transposes `count` matrices (rows, columns) into (to_rows, to_columns), with a change of the dtype: only the
    // first to_rows <= columns columns, and zeros from `rows` to to_columns.
    void (*transpose)(Dtype of, const void *source, Dtype to, void *target, long count, long rows, long columns,
                      long to_rows, long to_columns);
};

}  // namespace native

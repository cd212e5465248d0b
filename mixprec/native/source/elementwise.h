// What is computed element by element; all arrays are flat.
#pragma once

#include "dtypes.h"

namespace native {

struct Elementwise {
    // Rounds or widens; of and to are other dtypes.
    void (*convert)(Dtype of, const void *source, Dtype to, void *target, long size);
    void (*add)(Dtype dtype, const void *a, const void *b, void *sum, long size);
};

}  // namespace native

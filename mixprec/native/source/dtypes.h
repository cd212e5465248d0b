// What arrays are stored in.
#pragma once

#include <cstdint>

namespace native {

struct Half {
    uint16_t bits;
};
struct Bfloat {
    uint16_t bits;
};

enum Dtype { FLOAT, HALF, BFLOAT };  // float32, float16, bfloat16

template <class Type>
struct Tag {
    typedef Type type;
};

// Calls body with the Tag of a dtype: of_dtype(dtype, [&](auto tag) { using T = typename decltype(tag)::type; ... }).
template <class Body>
void of_dtype(Dtype dtype, const Body &body) {
    if (dtype == FLOAT)
        body(Tag<float>());
    else if (dtype == HALF)
        body(Tag<Half>());
    else
        body(Tag<Bfloat>());
}

}  // namespace native

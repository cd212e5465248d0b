// See elementwise.h.
#include "elementwise.h"
#include "pool.h"
#include "vector.h"

namespace native {
namespace INSTRUCTIONS {

void convert(Dtype of, const void *source, Dtype to, void *target, long size) {
    of_dtype(of, [&](auto source_tag) {
        of_dtype(to, [&](auto target_tag) {
            auto *in = static_cast<const typename decltype(source_tag)::type *>(source);
            auto *out = static_cast<typename decltype(target_tag)::type *>(target);
            parallel_parts(size, LEAST, [&](long start, long stop) {
                vectors(start, stop, [&](long i, long count) { store_n(out + i, load_n(in + i, count), count); });
            });
        });
    });
}

void add_arrays(Dtype dtype, const void *a, const void *b, void *sum, long size) {
    of_dtype(dtype, [&](auto tag) {
        using Stored = typename decltype(tag)::type;
        auto *one = static_cast<const Stored *>(a), *other = static_cast<const Stored *>(b);
        auto *out = static_cast<Stored *>(sum);
        parallel_parts(size, LEAST, [&](long start, long stop) {
            vectors(start, stop, [&](long i, long count) {
                store_n(out + i, add(load_n(one + i, count), load_n(other + i, count)), count);
            });
        });
    });
}

}  // namespace INSTRUCTIONS
}  // namespace native

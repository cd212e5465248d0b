// What a batch normalization that reads its input once would need: fast access to narrow slices of channels, and a
// barrier of all blocks of a grid.

typedef unsigned long long u64;
#ifdef HOST_LAUNCH
struct uint4 {
    unsigned x, y, z, w;
};
#endif

// Copies rows of `width` pieces of 16 bytes, slice by slice: first the first `slice` pieces of all rows. Each byte is
// read and written once; with slice == width it is a plain copy.
extern "C" __global__ void __launch_bounds__(THREADS) copy_slices(u64 from, u64 to, long long rows, long long width,
                                                                   long long slice) {
    const uint4* source = reinterpret_cast<const uint4*>(from);
    uint4* target = reinterpret_cast<uint4*>(to);
    const long long all = rows * width;
    for (long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x; i < all;
         i += static_cast<long long>(gridDim.x) * THREADS) {
        const long long number = i / (rows * slice), rest = i - number * rows * slice;
        const long long at = rest / slice * width + number * slice + rest % slice;
        target[at] = source[at];
    }
}

#ifndef HOST_LAUNCH  // there, blocks run one after the other
// Each block adds 1 to its own number; after a barrier each one adds up all numbers. `arrived` only ever grows, by one
// for each block and launch, so that launches of a graph can follow each other.
extern "C" __global__ void __launch_bounds__(THREADS) meet(u64 numbers, u64 sums, u64 arrived) {
    unsigned* own = reinterpret_cast<unsigned*>(numbers);
    unsigned* counter = reinterpret_cast<unsigned*>(arrived);
    if (threadIdx.x) return;
    own[blockIdx.x] += 1;
    __threadfence();
    const unsigned last = (atomicAdd(counter, 1) / gridDim.x + 1) * gridDim.x;
    while (atomicAdd(counter, 0) < last) {
    }
    __threadfence();
    unsigned sum = 0;
    for (unsigned i = 0; i < gridDim.x; ++i) sum += static_cast<volatile unsigned*>(own)[i];
    reinterpret_cast<unsigned*>(sums)[blockIdx.x] = sum;
}
#endif

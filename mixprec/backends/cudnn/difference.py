"""The difference of two arrays on the device, for the comparison of engines."""

import numpy as np

KINDS = {"float32": 0, "float16": 1, "bfloat16": 2}
BLOCKS = 256
# What is not finite in one array only counts if the other's element is not near the end of the dtype's range either,
# where two engines may round to different sides of it.
_LIMITS = {"float32": 2.0**127, "float16": 2.0**15, "bfloat16": 2.0**127}

# Each thread writes what it has found, nothing is shared: the host puts it together.
SOURCE = """
__device__ inline float from_bits(unsigned bits) {
    union { unsigned bits; float value; } both;
    both.bits = bits;
    return both.value;
}

__device__ inline float element(const void* array, long long index, long long kind) {
    if (kind == 0) return ((const float*)array)[index];
    const unsigned bits = ((const unsigned short*)array)[index];
    if (kind == 2) return from_bits(bits << 16);
    const unsigned sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31, mantissa = bits & 1023;
    if (exponent == 31) return from_bits(sign | 0x7f800000u | mantissa << 13);
    if (exponent == 0) return (sign ? -1.0f : 1.0f) * (float)mantissa * 5.9604644775390625e-8f;  // 2^-24
    return from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

__device__ inline bool is_finite(float value) { return value - value == 0.0f; }

// found: for each thread the largest |a - b|, the largest |a|, and how often one is not finite and the other is.
extern "C" __global__ void difference(const void* a, const void* b, long long count, long long kind, double limit,
                                      float* found) {
    const long long thread = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    const long long threads = gridDim.x * (long long)blockDim.x;
    float largest = 0.0f, scale = 0.0f, unlike = 0.0f;
    for (long long index = thread; index < count; index += threads) {
        const float one = element(a, index, kind), other = element(b, index, kind);
        if (is_finite(one) && is_finite(other)) {
            const float apart = one > other ? one - other : other - one, size = one < 0.0f ? -one : one;
            if (apart > largest) largest = apart;
            if (size > scale) scale = size;
        } else if (is_finite(one) || is_finite(other)) {
            const float finite = is_finite(one) ? one : other;
            if ((finite < 0.0f ? -finite : finite) < limit) unlike += 1.0f;
        }
    }
    found[3 * thread] = largest;
    found[3 * thread + 1] = scale;
    found[3 * thread + 2] = unlike;
}
"""


def arguments(a, b, count, dtype, found):
    """Returns the arguments of the kernel: addresses, number of elements, dtype by name, and where to write."""
    return a, b, count, KINDS[dtype], _LIMITS[dtype], found


def result(found):
    """Returns ``(largest |a - b|, largest |a|, number of elements that are finite in one array only)``.

    Args:
        found: what the threads have written, (threads, 3) float32.
    """
    largest, scale = np.max(found[:, :2], 0)
    return float(largest), float(scale), int(found[:, 2].sum(dtype=np.float64))

// What the packed matrices of a product consist of: floats, or pairs of BF16 numbers where the processor has an
// instruction that multiplies pairs and adds both products to a float. The two numbers of a pair are
// neighbours in the sum. The instruction takes subnormal numbers for zero.
#pragma once
#include "vector.h"

namespace native {
namespace INSTRUCTIONS {

struct Pair {
    Bfloat first, second;
};

// Number: of a matrix; COUNT numbers are an operand.
template <class Operand>
struct Numbers {
    typedef float Number;
    static constexpr int COUNT = 1;
};
template <>
struct Numbers<Pair> {
    typedef Bfloat Number;
    static constexpr int COUNT = 2;
};

// Of arrays of a storage dtype.
template <class Stored>
struct OperandOf {
    typedef float Operand;
};

inline Vector load(const Pair *p) { return load(reinterpret_cast<const float *>(p)); }

// Writes two vectors of sums. The instruction for BF16 takes subnormal numbers for zero, as products of pairs do.
template <class Stored>
INLINE void store_two(Stored *out, Vector first, Vector second) {
    store_n(out, first, LANES);
    store_n(out + LANES, second, LANES);
}

#ifdef __AVX512BF16__

INLINE void store_two(Bfloat *out, Vector first, Vector second) {
    _mm512_storeu_si512(out, (__m512i)_mm512_cvtne2ps_pbh(second, first));
}

template <>
struct OperandOf<Bfloat> {
    typedef Pair Operand;
};

inline Vector spread(Pair x) {
    int bits;
    memcpy(&bits, &x, sizeof bits);
    return _mm512_castsi512_ps(_mm512_set1_epi32(bits));
}
inline Vector sum_of_products(Vector a, Vector b, Vector sum, Pair) {
    return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_castps_si512(a), (__m512bh)_mm512_castps_si512(b));
}

// The operands of `count` numbers of two rows; the second row may be null, for zeros.
inline Vector operands_of(const Bfloat *first, const Bfloat *second, long count, Pair) {
    __mmask16 mask = native::INSTRUCTIONS::first(count);
    Integers pairs = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, first));
    if (second) {
        Integers high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, second));
        pairs = _mm512_or_si512(pairs, _mm512_slli_epi32(high, 16));
    }
    return _mm512_castsi512_ps(pairs);
}

// Numbers as they are.
inline void pack_n(const Bfloat *in, Bfloat *out, long count) { memcpy(out, in, count * sizeof(Bfloat)); }
inline void zero_n(Bfloat *out, long count) { memset(out, 0, count * sizeof(Bfloat)); }
inline void pack_4(const Bfloat *in, Bfloat *out) { memcpy(out, in, 4 * sizeof(Bfloat)); }
inline void zero_n(Pair *out, long count) { memset(out, 0, count * sizeof(Pair)); }

#endif

inline Vector sum_of_products(Vector a, Vector b, Vector sum, float) { return fused(a, b, sum); }

template <class Stored>
inline void pack_n(const Stored *in, float *out, long count) {
    vectors(0, count, [&](long i, long some) { store_n(out + i, load_n(in + i, some), some); });
}

inline __m128 four(const float *in) { return _mm_loadu_ps(in); }
inline __m128 four(const Half *in) { return _mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)in)); }
inline __m128 four(const Bfloat *in) {
    return _mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)in)), 16));
}
template <class Stored>
inline void pack_4(const Stored *in, float *out) {
    _mm_storeu_ps(out, four(in));
}

template <class Stored>
inline Vector operands_of(const Stored *first, const Stored *, long count, float) {  // those of one row
    return load_n(first, count);
}

template <class Stored, class Operand>
inline void pack_rows(const Stored *first, const Stored *second, Operand *out, long count) {
    auto *floats = reinterpret_cast<float *>(out);
    vectors(0, count, [&](long i, long some) {
        store_n(floats + i, operands_of(first + i, second ? second + i : nullptr, some, Operand()), some);
    });
}

inline void zero_n(float *out, long count) {
    vectors(0, count, [&](long i, long some) { store_n(out + i, spread(0), some); });
}

}  // namespace INSTRUCTIONS
}  // namespace native

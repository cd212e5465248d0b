// Vectors of float32, and loads and stores of all storage dtypes. The files that are compiled for an instruction set
// include this in a namespace of their own, INSTRUCTIONS.
//
// Rounding is to nearest, ties to even. From and to float32 a NaN stays the NaN that NumPy (float16) and ml_dtypes
// (bfloat16) make of it; between float16 and bfloat16 it goes by float32, where ml_dtypes drops its payload.
#pragma once

#include <cstring>
#include <immintrin.h>

#include "dtypes.h"

#define INLINE __attribute__((always_inline)) inline  // of what is called for each vector
#define COLD __attribute__((noinline, cold, unused)) static  // of what hardly ever is

namespace native {
namespace INSTRUCTIONS {

// 16 bits that are moved and no number: a vector has them in its lower halves.
struct Word {
    uint16_t bits;
};

// NumPy's conversion of NaN keeps the highest bits that fit, and does not make a signalling one a quiet one.
inline uint16_t half_of_nan(uint32_t bits) {
    uint16_t half = 0x7c00 | ((bits & 0x7fffff) >> 13);
    return ((bits >> 16) & 0x8000) | (half == 0x7c00 ? 0x7c01 : half);
}

inline uint32_t nan_of_half(uint16_t half) {
    return (uint32_t(half & 0x8000) << 16) | 0x7f800000 | (uint32_t(half & 0x3ff) << 13);
}

#ifdef __AVX512F__

constexpr int LANES = 16;
typedef __m512 Vector;
typedef __m512i Integers;
typedef __m256i Raw;  // of a 16-bit dtype
COLD Vector widen_nan(Raw raw, Vector v);
COLD Raw narrow_nan(Raw raw, Vector v);

INLINE Vector load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void store(float *p, Vector v) { _mm512_storeu_ps(p, v); }
INLINE __mmask16 first(long count) { return __mmask16((1u << count) - 1); }
INLINE Vector load_some(const float *p, long count) { return _mm512_maskz_loadu_ps(first(count), p); }
INLINE void store_some(float *p, Vector v, long count) { _mm512_mask_storeu_ps(p, first(count), v); }

INLINE Vector widen(__m256i raw, Half *) {
    Vector v = _mm512_cvtph_ps(raw);
    return __builtin_expect(_mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), 0) ? widen_nan(raw, v) : v;
}
INLINE Vector widen(__m256i raw, Bfloat *) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16));
}
INLINE __m256i narrow(Vector v, Half *) {
    __m256i raw = _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return __builtin_expect(_mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), 0) ? narrow_nan(raw, v) : raw;
}
// The bits of bfloat16 in the upper halves.
INLINE Integers upper_halves(Vector v) {
    Integers bits = _mm512_castps_si512(v);
    Integers odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    Integers rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    Integers nan = _mm512_or_si512(
        _mm512_set1_epi32(0x7fc00000), _mm512_and_si512(bits, _mm512_set1_epi32(0x80000000)));
    return _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), nan);
}
INLINE __m256i narrow(Vector v, Bfloat *) { return _mm512_cvtepi32_epi16(_mm512_srli_epi32(upper_halves(v), 16)); }
// As `widen` of `narrow`, for results of arithmetic: see store_result.
INLINE Vector rounded(Vector v, float *) { return v; }
INLINE Vector rounded(Vector v, Half *) {
    return _mm512_cvtph_ps(_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
INLINE Vector rounded(Vector v, Bfloat *) {
    return _mm512_castsi512_ps(_mm512_and_si512(upper_halves(v), _mm512_set1_epi32(0xffff0000)));
}
INLINE Vector widen(__m256i raw, Word *) { return _mm512_castsi512_ps(_mm512_cvtepu16_epi32(raw)); }
INLINE __m256i narrow(Vector v, Word *) { return _mm512_cvtepi32_epi16(_mm512_castps_si512(v)); }
INLINE __m256i load_raw(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
INLINE void store_raw(void *p, __m256i raw) { _mm256_storeu_si256((__m256i *)p, raw); }

INLINE Vector spread(float x) { return _mm512_set1_ps(x); }
INLINE Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
INLINE Vector subtract(Vector a, Vector b) { return _mm512_sub_ps(a, b); }
INLINE Vector multiply(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
INLINE Vector fused(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }  // a * b + c
// As np.maximum(x, 0): NaN stays NaN, and -0.0 becomes 0.0.
INLINE Vector relu(Vector x) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_NLE_UQ), x);
}
INLINE Vector where_positive(Vector x, Vector value) {  // value where x > 0, 0 elsewhere
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ), value);
}
INLINE Vector widen_quietly(const Half *p) { return _mm512_cvtph_ps(load_raw(p)); }
INLINE void narrow_quiet(Half *p, Vector v) {
    store_raw(p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
INLINE Vector divide(Vector a, Vector b) { return _mm512_div_ps(a, b); }
typedef __mmask16 Mask;
INLINE Mask equal(Vector a, Vector b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
INLINE Mask beats(Vector a, Vector b) {  // a > b, where NaN is larger than everything else, and equal to itself
    return _mm512_cmp_ps_mask(a, b, _CMP_NLE_UQ) & _mm512_cmp_ps_mask(b, b, _CMP_ORD_Q);
}
INLINE Vector choose(Mask mask, Vector yes, Vector no) { return _mm512_mask_mov_ps(no, mask, yes); }
// Of LANES bytes, and of vectors of integers from 0 to 255.
INLINE Vector load_all_bytes(const unsigned char *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
INLINE void store_all_bytes(unsigned char *p, Vector v) {
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(_mm512_cvttps_epi32(v)));
}

#else

constexpr int LANES = 8;
typedef __m256 Vector;
typedef __m256i Integers;
typedef __m128i Raw;
COLD Vector widen_nan(Raw raw, Vector v);
COLD Raw narrow_nan(Raw raw, Vector v);

INLINE Vector load(const float *p) { return _mm256_loadu_ps(p); }
INLINE void store(float *p, Vector v) { _mm256_storeu_ps(p, v); }
INLINE Vector load_some(const float *p, long count) {
    float part[LANES] = {};
    memcpy(part, p, count * sizeof(float));
    return load(part);
}
INLINE void store_some(float *p, Vector v, long count) {
    float part[LANES];
    store(part, v);
    memcpy(p, part, count * sizeof(float));
}

INLINE Vector widen(__m128i raw, Half *) {
    Vector v = _mm256_cvtph_ps(raw);
    return __builtin_expect(_mm256_movemask_ps(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)), 0) ? widen_nan(raw, v) : v;
}
INLINE Vector widen(__m128i raw, Bfloat *) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
}
INLINE __m128i narrow(Vector v, Half *) {
    __m128i raw = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return __builtin_expect(_mm256_movemask_ps(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)), 0) ? narrow_nan(raw, v) : raw;
}
INLINE Integers upper_halves(Vector v) {
    Integers bits = _mm256_castps_si256(v);
    Integers odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    Integers rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    Integers nan = _mm256_or_si256(
        _mm256_set1_epi32(0x7fc00000), _mm256_and_si256(bits, _mm256_set1_epi32(0x80000000)));
    return _mm256_blendv_epi8(rounded, nan, _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)));
}
INLINE Vector rounded(Vector v, float *) { return v; }
INLINE Vector rounded(Vector v, Half *) {
    return _mm256_cvtph_ps(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
INLINE Vector rounded(Vector v, Bfloat *) {
    return _mm256_castsi256_ps(_mm256_and_si256(upper_halves(v), _mm256_set1_epi32(0xffff0000)));
}
INLINE __m128i narrow(Vector v, Bfloat *) {
    Integers words = _mm256_srli_epi32(upper_halves(v), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}
INLINE Vector widen(__m128i raw, Word *) { return _mm256_castsi256_ps(_mm256_cvtepu16_epi32(raw)); }
INLINE __m128i narrow(Vector v, Word *) {
    Integers words = _mm256_castps_si256(v);
    return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}
INLINE __m128i load_raw(const void *p) { return _mm_loadu_si128((const __m128i *)p); }
INLINE void store_raw(void *p, __m128i raw) { _mm_storeu_si128((__m128i *)p, raw); }

INLINE Vector spread(float x) { return _mm256_set1_ps(x); }
INLINE Vector add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
INLINE Vector subtract(Vector a, Vector b) { return _mm256_sub_ps(a, b); }
INLINE Vector multiply(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
INLINE Vector fused(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
INLINE Vector relu(Vector x) { return _mm256_and_ps(_mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_NLE_UQ), x); }
INLINE Vector where_positive(Vector x, Vector value) {
    return _mm256_and_ps(_mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_GT_OQ), value);
}
INLINE Vector widen_quietly(const Half *p) { return _mm256_cvtph_ps(load_raw(p)); }
INLINE void narrow_quiet(Half *p, Vector v) {
    store_raw(p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
INLINE Vector divide(Vector a, Vector b) { return _mm256_div_ps(a, b); }
typedef __m256 Mask;
INLINE Mask equal(Vector a, Vector b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
INLINE Mask beats(Vector a, Vector b) {
    return _mm256_and_ps(_mm256_cmp_ps(a, b, _CMP_NLE_UQ), _mm256_cmp_ps(b, b, _CMP_ORD_Q));
}
INLINE Vector choose(Mask mask, Vector yes, Vector no) { return _mm256_blendv_ps(no, yes, mask); }
INLINE Vector load_all_bytes(const unsigned char *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
INLINE void store_all_bytes(unsigned char *p, Vector v) {
    Integers words = _mm256_cvttps_epi32(v);
    __m128i half = _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storel_epi64((__m128i *)p, _mm_packus_epi16(half, half));
}

#endif

// Vectors of float16 with NaN, as NumPy converts it; `raw` is what the instruction makes of it, or has made v of.
COLD Vector widen_nan(Raw raw, Vector v) {
    uint16_t halves[LANES];
    uint32_t words[LANES];
    memcpy(halves, &raw, sizeof raw), memcpy(words, &v, sizeof v);
    for (int i = 0; i < LANES; ++i)
        if ((halves[i] & 0x7fff) > 0x7c00) words[i] = nan_of_half(halves[i]);
    memcpy(&v, words, sizeof v);
    return v;
}
COLD Raw narrow_nan(Raw raw, Vector v) {
    uint16_t halves[LANES];
    uint32_t words[LANES];
    memcpy(halves, &raw, sizeof raw), memcpy(words, &v, sizeof v);
    for (int i = 0; i < LANES; ++i)
        if ((words[i] & 0x7fffffff) > 0x7f800000) halves[i] = half_of_nan(words[i]);
    memcpy(&raw, halves, sizeof raw);
    return raw;
}

template <class Stored>
INLINE Vector load(const Stored *p) {
    return widen(load_raw(p), static_cast<Stored *>(nullptr));
}
template <class Stored>
INLINE void store(Stored *p, Vector v) {
    store_raw(p, narrow(v, static_cast<Stored *>(nullptr)));
}
// Of fewer than LANES elements; what is missing is 0.
template <class Stored>
INLINE Vector load_some(const Stored *p, long count) {
#ifdef __AVX512F__
    return widen(_mm256_maskz_loadu_epi16(first(count), p), static_cast<Stored *>(nullptr));
#else
    Stored part[LANES] = {};
    memcpy(part, p, count * sizeof(Stored));
    return load(part);
#endif
}
template <class Stored>
INLINE void store_some(Stored *p, Vector v, long count) {
#ifdef __AVX512F__
    _mm256_mask_storeu_epi16(p, first(count), narrow(v, static_cast<Stored *>(nullptr)));
#else
    Stored part[LANES];
    store(part, v);
    memcpy(p, part, count * sizeof(Stored));
#endif
}

// Calls body(index, count) for each vector from start to stop: count is LANES, but for a last one that is shorter. Use
// load_n and store_n inside.
template <class Body>
INLINE void vectors(long start, long stop, const Body &body) {
    for (; start + LANES <= stop; start += LANES) body(start, long(LANES));
    if (start < stop) body(start, stop - start);
}
template <class Stored>
INLINE Vector load_n(const Stored *p, long count) {
    return __builtin_expect(count == LANES, 1) ? load(p) : load_some(p, count);
}
template <class Stored>
INLINE void store_n(Stored *p, Vector v, long count) {
    if (__builtin_expect(count == LANES, 1))
        store(p, v);
    else
        store_some(p, v, count);
}

// Loads as load_n, and stores as store_n, where arithmetic follows or has come before: that makes a signalling NaN a
// quiet one, so that those of float16 need no care, which costs as much as all the rest.
template <class Stored>
INLINE Vector operand(const Stored *p, long count) {
    return load_n(p, count);
}
INLINE Vector operand(const Half *p, long count) {
    return __builtin_expect(count == LANES, 1) ? widen_quietly(p) : load_some(p, count);
}
template <class Stored>
INLINE void store_result(Stored *p, Vector v, long count) {
    store_n(p, v, count);
}
INLINE void store_result(Half *p, Vector v, long count) {
    if (__builtin_expect(count == LANES, 1))
        narrow_quiet(p, v);
    else
        store_some(p, v, count);
}

INLINE Vector load_bytes(const unsigned char *p, long count) {
    if (__builtin_expect(count == LANES, 1)) return load_all_bytes(p);
    unsigned char part[LANES] = {};
    memcpy(part, p, count);
    return load_all_bytes(part);
}
INLINE void store_bytes(unsigned char *p, Vector v, long count) {
    if (__builtin_expect(count == LANES, 1)) return store_all_bytes(p, v);
    unsigned char part[LANES];
    store_all_bytes(part, v);
    memcpy(p, part, count);
}

}  // namespace INSTRUCTIONS
}  // namespace native

// The dropout of elementwise.h, with the random numbers of Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers:
// as easy as 1, 2, 3"): a counter for four neighbouring elements.
#include "elementwise.h"
#include "pool.h"
#include "vector.h"

namespace native {
namespace INSTRUCTIONS {

// Vectors of 64 bits, of which products take the lower halves only: what is in the upper ones does not matter.
#ifdef __AVX512F__
INLINE Integers spread_word(uint64_t word) { return _mm512_set1_epi64(int64_t(word)); }
INLINE Integers add_words(Integers a, Integers b) { return _mm512_add_epi64(a, b); }
INLINE Integers products(Integers a, Integers b) { return _mm512_mul_epu32(a, b); }
INLINE Integers high_halves(Integers a) { return _mm512_srli_epi64(a, 32); }
INLINE Integers differing(Integers a, Integers b, Integers c) { return _mm512_ternarylogic_epi64(a, b, c, 0x96); }
// The lower halves of a, with the lower halves of b as the upper ones.
INLINE Integers pairs(Integers a, Integers b) {
    return _mm512_mask_mov_epi32(_mm512_slli_epi64(b, 32), 0x5555, a);
}
// Counters in an order in which `even` and `odd` make neighbours of them.
INLINE Integers first_counters() { return _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7); }
INLINE Integers even(Integers a, Integers b) { return _mm512_unpacklo_epi64(a, b); }
INLINE Integers odd(Integers a, Integers b) { return _mm512_unpackhi_epi64(a, b); }
INLINE Mask at_least(Integers numbers, uint32_t threshold) {
    return _mm512_cmpge_epu32_mask(numbers, _mm512_set1_epi32(int32_t(threshold)));
}
#else
INLINE Integers spread_word(uint64_t word) { return _mm256_set1_epi64x(int64_t(word)); }
INLINE Integers add_words(Integers a, Integers b) { return _mm256_add_epi64(a, b); }
INLINE Integers products(Integers a, Integers b) { return _mm256_mul_epu32(a, b); }
INLINE Integers high_halves(Integers a) { return _mm256_srli_epi64(a, 32); }
INLINE Integers differing(Integers a, Integers b, Integers c) {
    return _mm256_xor_si256(_mm256_xor_si256(a, b), c);
}
INLINE Integers pairs(Integers a, Integers b) { return _mm256_blend_epi32(_mm256_slli_epi64(b, 32), a, 0x55); }
INLINE Integers first_counters() { return _mm256_setr_epi64x(0, 2, 1, 3); }
INLINE Integers even(Integers a, Integers b) { return _mm256_unpacklo_epi64(a, b); }
INLINE Integers odd(Integers a, Integers b) { return _mm256_unpackhi_epi64(a, b); }
INLINE Mask at_least(Integers numbers, uint32_t threshold) {
    Integers most = _mm256_max_epu32(numbers, _mm256_set1_epi32(int32_t(threshold)));
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(most, numbers));
}
#endif

void dropout(Dtype dtype, const void *x, double ratio, uint64_t seed, uint64_t sequence, void *y, long size) {
    const uint32_t threshold = uint32_t(ratio * 4294967296.0);
    const Vector rest = spread(float(1 - ratio));
    of_dtype(dtype, [&](auto tag) {
        using Stored = typename decltype(tag)::type;
        auto *in = static_cast<const Stored *>(x);
        auto *out = static_cast<Stored *>(y);
        auto drop = [&](Integers numbers, long i, long count) __attribute__((always_inline)) {
            Vector stays = divide(operand(in + i, count), rest);
            store_result(out + i, choose(at_least(numbers, threshold), stays, spread(0)), count);
        };
        parallel_parts(size, LEAST, [&](long start, long stop) {
            for (long i = start; i < stop; i += 2 * LANES) {
                Integers a = add_words(first_counters(), spread_word(uint64_t(i) / 4)), b = high_halves(a);
                Integers c = spread_word(sequence), d = spread_word(sequence >> 32);
                uint32_t key[] = {uint32_t(seed), uint32_t(seed >> 32)};
                for (int round = 0; round < 10; ++round) {
                    Integers of_a = products(a, spread_word(0xD2511F53)), of_c = products(c, spread_word(0xCD9E8D57));
                    a = differing(high_halves(of_c), b, spread_word(key[0])), b = of_c;
                    c = differing(high_halves(of_a), d, spread_word(key[1])), d = of_a;
                    key[0] += 0x9E3779B9, key[1] += 0xBB67AE85;
                }
                Integers ab = pairs(a, b), cd = pairs(c, d);
                long left = stop - i;
                drop(even(ab, cd), i, left < LANES ? left : LANES);
                if (left > LANES) drop(odd(ab, cd), i + LANES, left < 2 * LANES ? left - LANES : LANES);
            }
        });
    });
}

}  // namespace INSTRUCTIONS
}  // namespace native

// The matrix unit of x86 processors, AMX: eight registers of 16 rows of 64 bytes, and products of BF16 pairs. Tests put
// functions in place of these that compute the same on any processor: tests/native/stand_in_tiles.h.
#pragma once

#ifdef STAND_IN
#include "stand_in_tiles.h"
#else

#include "vector.h"

namespace native {

// Not the intrinsics of g++ 12: these do not tell it what memory they read, and it dropped stores of a configuration.
INLINE void tile_configure() {
    struct {
        unsigned char palette = 1, start = 0, reserved[14] = {};
        unsigned short bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        unsigned char rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } configuration;
    asm volatile("ldtilecfg %0" ::"m"(configuration));
}
INLINE void tile_release() { asm volatile("tilerelease"); }
template <int TILE>
INLINE void tile_zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(TILE));
}
template <int TILE>
INLINE void tile_load(const void *from, long step) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(step), "i"(TILE) : "memory");
}
template <int TILE>
INLINE void tile_store(void *to, long step) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(step), "i"(TILE) : "memory");
}
template <int TO, int LEFT, int RIGHT>
INLINE void tile_multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(TO), "i"(LEFT), "i"(RIGHT));
}

}  // namespace native

#endif

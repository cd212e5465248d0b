// Stands in for the tiles of AMX (mixprec/native/source/tiles.h) and gives the same bits on any processor: Intel's manual,
// TDPBF16PS. First and second numbers of the pairs have sums of their own, of fused steps that begin with 0. Both together
// are added to the tile. Subnormal numbers are zero, of inputs and of each sum.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace native {

struct Tile {
    uint32_t words[16][16];
};
inline thread_local Tile tiles[8];
inline thread_local bool are_configured = false;

inline float flushed(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if (!(bits & 0x7f800000)) bits &= 0x80000000;
    memcpy(&value, &bits, 4);
    return value;
}
inline float number(uint32_t upper_half) {
    float value;
    memcpy(&value, &upper_half, 4);
    return flushed(value);
}

inline void check(bool is_right) {  // the processor raises an exception without a configuration
    if (!is_right) abort();
}

inline void tile_configure() {
    check(!are_configured);
    are_configured = true;
    memset(tiles, 0xff, sizeof tiles);  // NaN: what is not loaded is seen
}
inline void tile_release() {
    check(are_configured);
    are_configured = false;
}
template <int TILE>
void tile_zero() {
    check(are_configured);
    memset(&tiles[TILE], 0, sizeof(Tile));
}
template <int TILE>
void tile_load(const void *from, long step) {
    check(are_configured);
    for (int i = 0; i < 16; ++i) memcpy(tiles[TILE].words[i], static_cast<const char *>(from) + i * step, 64);
}
template <int TILE>
void tile_store(void *to, long step) {
    check(are_configured);
    for (int i = 0; i < 16; ++i) memcpy(static_cast<char *>(to) + i * step, tiles[TILE].words[i], 64);
}
template <int TO, int LEFT, int RIGHT>
void tile_multiply() {
    check(are_configured);
    for (int m = 0; m < 16; ++m)
        for (int n = 0; n < 16; ++n) {
            float first = 0, second = 0;
            for (int k = 0; k < 16; ++k) {
                uint32_t a = tiles[LEFT].words[m][k], b = tiles[RIGHT].words[k][n];
                first = flushed(fmaf(number(a << 16), number(b << 16), first));
                second = flushed(fmaf(number(a & 0xffff0000), number(b & 0xffff0000), second));
            }
            float sum = flushed(number(tiles[TO].words[m][n]) + flushed(first + second));
            memcpy(&tiles[TO].words[m][n], &sum, 4);
        }
}

}  // namespace native

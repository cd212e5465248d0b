// Whether tiles are kept while a thread does not run: more threads than processors load eight tiles each, let others run,
// sleep or compute, and store the tiles. The program fails if one has changed. Without AMX: -DSTAND_IN -I tests/native.
//   g++ -std=c++17 -O2 -pthread -mavx512f -mavx512bw -mavx512vl -mavx512dq -I mixprec/native/source
//       tests/native/kept_tiles.cpp -o kept_tiles && ./kept_tiles
#include <cstdint>
#include <cstdio>
#include <sched.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "processor.h"
#define INSTRUCTIONS kept_tiles
#include "tiles.h"

template <int TILE, class Each>
void for_each_tile(const Each &each) {
    if constexpr (TILE < 8) {
        each(std::integral_constant<int, TILE>());
        for_each_tile<TILE + 1>(each);
    }
}

static bool is_lost = false;

static void check(uint32_t seed) {
    static thread_local uint32_t before[8][256], after[8][256];
    native::tile_configure();
    for (uint32_t round = 0; round < 1000; ++round) {
        for (int tile = 0; tile < 8; ++tile)
            for (int i = 0; i < 256; ++i) before[tile][i] = seed = seed * 1664525 + 1013904223;
        for_each_tile<0>([](auto tile) { native::tile_load<tile.value>(before[tile.value], 64); });
        if (round % 3 == 0) sched_yield();
        else if (round % 3 == 1) usleep(50);
        else for (volatile int i = 0; i < 20000; i = i + 1) {}
        for_each_tile<0>([](auto tile) { native::tile_store<tile.value>(after[tile.value], 64); });
        if (memcmp(before, after, sizeof before)) __atomic_store_n(&is_lost, true, __ATOMIC_RELAXED);
    }
    native::tile_release();
}

int main() {
    if (!native::Processor().may_use_amx()) return puts("no permission"), 2;
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < 4 * std::thread::hardware_concurrency(); ++i) threads.emplace_back(check, i);
    for (auto &thread : threads) thread.join();
    if (is_lost) puts("tiles were lost");
    return is_lost;
}

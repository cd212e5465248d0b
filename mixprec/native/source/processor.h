// The instruction sets that the processor has and the system lets programs use. The compiler's __builtin_cpu_supports is
// not asked: in zig's library, with which `make release` builds, it answers that there are none.
#pragma once

#include <cpuid.h>

namespace native {

struct Processor {
    bool avx2 = false, avx512 = false, bf16 = false;  // each with the extensions that setup.py compiles it for

    Processor() {
        unsigned eax, ebx, ecx, edx;
        constexpr unsigned FMA = 1u << 12, OSXSAVE = 1u << 27, F16C = 1u << 29, BASIC = FMA | OSXSAVE | F16C;
        if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || (ecx & BASIC) != BASIC) return;
        unsigned saved, high;  // the registers that the system saves, as bits: 0x06 for AVX, 0xe6 for AVX-512
        __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
        constexpr unsigned F = 1u << 16, DQ = 1u << 17, BW = 1u << 30, VL = 1u << 31, FOUR = F | DQ | BW | VL;
        if ((saved & 0x06) != 0x06 || !__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return;
        avx2 = ebx & 1u << 5;
        avx512 = avx2 && (saved & 0xe6) == 0xe6 && (ebx & FOUR) == FOUR;
        bf16 = avx512 && eax >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & 1u << 5);
    }
};

}  // namespace native

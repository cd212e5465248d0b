// The instruction sets that the processor has and the system lets programs use. The compiler's __builtin_cpu_supports is
// not asked: in zig's library, with which `make release` builds, it answers that there are none.
#pragma once

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace native {

struct Processor {
    bool avx2 = false, avx512 = false, bf16 = false;  // each with the extensions that setup.py compiles it for
    bool amx = false;       // with products of BF16
    bool is_intel = false;  // AVX512_BF16 then has half the rate of float32 products; on AMD it has twice that rate

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
        constexpr unsigned AMX_BF16 = 1u << 22, AMX_TILE = 1u << 24;
        amx = (edx & AMX_BF16) && (edx & AMX_TILE);
        bf16 = avx512 && eax >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & 1u << 5);
        amx = amx && bf16;
        is_intel = __get_cpuid(0, &eax, &ebx, &ecx, &edx) && ebx == signature_INTEL_ebx;
#ifdef STAND_IN
        amx = bf16;
#endif
    }

    // Requests permission to use AMX, whose first instruction ends the process without it. The permission holds for all
    // threads and for forked children. Linux refuses it before 5.16, and where a thread has a small stack for signals.
    bool may_use_amx() const {
#ifdef STAND_IN
        return true;
#else
        constexpr long REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
        return !syscall(SYS_arch_prctl, REQUEST, TILE_DATA);
#endif
    }
};

}  // namespace native

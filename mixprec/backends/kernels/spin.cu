// Keeps a stream busy for a while, by the clock of the device, so that the host can run ahead of it.

#ifndef HOST_LAUNCH
__device__ __forceinline__ u64 now() {
    u64 nanoseconds;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
    return nanoseconds;
}
#else
static u64 now() {  // as if a nanosecond went by between two looks
    static u64 nanoseconds;
    return ++nanoseconds;
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS) spin(long long nanoseconds) {
    if (threadIdx.x) return;
    const u64 start = now();
    while (now() - start < static_cast<u64>(nanoseconds)) {
    }
}

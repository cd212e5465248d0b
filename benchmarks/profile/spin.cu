// Keeps a stream busy for a while, by the clock of the device, so that the host can run ahead of it.

#ifndef HOST_LAUNCH
__device__ __forceinline__ unsigned long long now() {
    unsigned long long nanoseconds;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
    return nanoseconds;
}
#else
static unsigned long long now() {  // as if a nanosecond went by between two looks
    static unsigned long long nanoseconds;
    return ++nanoseconds;
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS) spin(long long nanoseconds) {
    if (threadIdx.x) return;
    const unsigned long long start = now();
    while (now() - start < static_cast<unsigned long long>(nanoseconds)) {
    }
}

// CUDA's execution model for g++, enough to run the kernels of mixprec: one thread of the operating system,
// one fibre for each CUDA thread of a block, blocks one after the other. Nothing may depend on the order of blocks and
// threads: it is drawn anew for each launch, and that of threads again for each stretch between two barriers, always the
// same for the same launches. Shared memory is full of NaN when a block begins. A thread that leaves while others wait
// for it, and an access of several words that is not aligned, end the launch with an error.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

#define HOST_LAUNCH 1
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static  // there is one block at a time; host_launch.py has each variable poisoned

using std::isfinite;
using std::max;
using std::min;
using std::pow;
using std::sqrt;

struct HostDim { unsigned x; };
static HostDim threadIdx, blockIdx, blockDim, gridDim;

namespace host {
struct Barrier { unsigned arrived = 0, generation = 0; int any = 0, result = 0; };
// A fibre lives as long as the library: it takes part in one block after the other.
struct Fibre { jmp_buf at; bool started, done; };

constexpr unsigned WARP_SIZE = 32, MOST_THREADS = 1024, STACK = 128 * 1024;
static Fibre fibres[MOST_THREADS];
static jmp_buf scheduler;
static unsigned current;
static void (*body)(void*);
static void* argument;
static Barrier block_barrier, warp_barriers[MOST_THREADS / WARP_SIZE];
static uint64_t exchanged[MOST_THREADS];
static volatile unsigned progress;  // how often a thread has ended, or a barrier has been passed
static void* poisoned[256];  // variables in shared memory, of this block
static unsigned poisoned_count;
static const char* error;  // the first of a launch

static void yield() {
    const unsigned me = current;
    if (_setjmp(fibres[me].at) == 0) _longjmp(scheduler, 1);
}

static void entry() {
    for (;;) {
        body(argument);
        fibres[current].done = true;
        progress = progress + 1;
        yield();
    }
}

// Goes on with a fibre, on a stack of its own.
static void enter(Fibre& fibre) {
    if (fibre.started) _longjmp(fibre.at, 1);
    fibre.started = true;
    static ucontext_t context;
    static char* stacks[MOST_THREADS];
    char*& stack = stacks[&fibre - fibres];
    if (!stack) stack = static_cast<char*>(std::malloc(STACK));
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = STACK;
    makecontext(&context, entry, 0);
    setcontext(&context);
}

// All bits set: NaN in every floating dtype.
static void poison(void* variable, size_t size) {
    for (unsigned i = 0; i < poisoned_count; i++)
        if (poisoned[i] == variable) return;
    if (poisoned_count == sizeof(poisoned) / sizeof(void*)) std::abort();
    poisoned[poisoned_count++] = variable;
    std::memset(variable, 0xFF, size);
}

// Fills an array with the numbers below its length, in an order that is drawn.
static void draw_order(unsigned* order, unsigned count) {
    static uint32_t state = 1;  // xorshift: Marsaglia 2003, doi:10.18637/jss.v008.i14
    for (unsigned i = 0; i < count; i++) order[i] = i;
    for (unsigned left = count; left > 1; left--) {
        state ^= state << 13, state ^= state >> 17, state ^= state << 5;
        const unsigned other = order[state % left];
        order[state % left] = order[left - 1];
        order[left - 1] = other;
    }
}

// Returns whether anybody came with `flag`.
static int wait(Barrier& barrier, unsigned count, int flag = 0) {
    const unsigned generation = barrier.generation;
    barrier.any |= flag;
    if (++barrier.arrived == count) {
        barrier.result = barrier.any;
        barrier.arrived = barrier.any = 0;
        barrier.generation++;
        progress = progress + 1;
    } else {
        while (barrier.generation == generation) yield();
    }
    return barrier.result;
}

static void wait_for_warp() { wait(warp_barriers[current / WARP_SIZE], WARP_SIZE); }

static void run_block(unsigned threads) {
    for (unsigned t = 0; t < threads; t++) fibres[t].done = false;
    poisoned_count = 0;
    block_barrier = Barrier();
    for (Barrier& barrier : warp_barriers) barrier = Barrier();
    static unsigned order[MOST_THREADS];
    static volatile bool any;
    static volatile unsigned turn, before;
    do {
        any = false;
        before = progress;
        draw_order(order, threads);
        for (turn = 0; turn < threads; turn = turn + 1) {
            current = threadIdx.x = order[turn];
            if (fibres[current].done) continue;
            any = true;
            if (_setjmp(scheduler) == 0) enter(fibres[current]);
        }
        if (any && before == progress) {
            if (!error) error = "threads wait at a barrier to which others never come";
            for (unsigned t = 0; t < threads; t++) fibres[t].started = false;  // the next block begins anew
            return;
        }
    } while (any);
}

// One argument of a kernel, as Python gives it; of a struct its address.
union Value { long long number; double real; };

template <class T>
T as(const Value& value) {
    if constexpr (std::is_pointer_v<T>) return reinterpret_cast<T>(value.number);
    else if constexpr (std::is_floating_point_v<T>) return value.real;
    else if constexpr (std::is_class_v<T>) return *reinterpret_cast<const T*>(value.number);
    else return value.number;
}

template <class Body>
void launch(unsigned blocks, unsigned threads, Body run) {
    gridDim.x = blocks;
    blockDim.x = threads;
    body = [](void* arguments) { (*static_cast<Body*>(arguments))(); };
    argument = &run;
    unsigned* order = static_cast<unsigned*>(std::malloc(blocks * sizeof(unsigned)));
    draw_order(order, blocks);
    for (unsigned i = 0; i < blocks; i++) {
        blockIdx.x = order[i];
        run_block(threads);
    }
    std::free(order);
}

template <class... Types, size_t... Places>
void call(void (*kernel)(Types...), unsigned blocks, unsigned threads, const Value* values,
          std::index_sequence<Places...>) {
    launch(blocks, threads, [&] { kernel(as<Types>(values[Places])...); });
}

// Returns what went wrong, or null.
template <class... Types>
const char* call(void (*kernel)(Types...), unsigned blocks, unsigned threads, const Value* values) {
    error = nullptr;
    call(kernel, blocks, threads, values, std::index_sequence_for<Types...>());
    return error;
}
}  // namespace host

static inline void __syncthreads() { host::wait(host::block_barrier, blockDim.x); }
static inline int __syncthreads_or(int flag) { return host::wait(host::block_barrier, blockDim.x, flag != 0); }
static inline void __threadfence() {}
static inline unsigned atomicAdd(unsigned* p, unsigned value) { const unsigned old = *p; *p = old + value; return old; }
static inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<uint64_t>(a) * b >> 32; }

template <class T>
static T __shfl_xor_sync(unsigned, T value, int mask) {
    static_assert(sizeof(T) <= 8);
    std::memcpy(&host::exchanged[threadIdx.x], &value, sizeof(T));
    const unsigned me = threadIdx.x;
    host::wait_for_warp();
    T other;
    std::memcpy(&other, &host::exchanged[me ^ mask], sizeof(T));
    host::wait_for_warp();
    return other;
}

static inline float __uint_as_float(unsigned bits) { float x; std::memcpy(&x, &bits, 4); return x; }
static inline unsigned __float_as_uint(float x) { unsigned bits; std::memcpy(&bits, &x, 4); return bits; }

static inline void sincospif(float x, float* sine, float* cosine) {
    *sine = static_cast<float>(std::sin(M_PI * x));
    *cosine = static_cast<float>(std::cos(M_PI * x));
}

// The accesses of a thread, of which words.cuh has another set for a GPU.
template <class T, int N>
static inline void check_alignment(unsigned long long address) {
    if (address % (N * sizeof(T)) && !host::error) host::error = "an access of several words is not aligned";
}

template <class T, int N>
static inline void load_all(unsigned long long address, T* x) {
    check_alignment<T, N>(address);
    std::memcpy(x, reinterpret_cast<const void*>(address), N * sizeof(T));
}

template <class T, int N>
static inline void store_all(unsigned long long address, const T* x) {
    check_alignment<T, N>(address);
    std::memcpy(reinterpret_cast<void*>(address), x, N * sizeof(T));
}

static inline void load_four(unsigned long long address, float* x) { load_all<float, 4>(address, x); }
static inline void load_four(unsigned long long address, unsigned* x) { load_all<unsigned, 4>(address, x); }
static inline void load_two(unsigned long long address, unsigned* x) { load_all<unsigned, 2>(address, x); }
static inline void load_of_others(unsigned long long address, float* x) { load_all<float, 4>(address, x); }
static inline void store_four(unsigned long long address, const float* x) { store_all<float, 4>(address, x); }
static inline void store_four(unsigned long long address, const unsigned* x) { store_all<unsigned, 4>(address, x); }
static inline void store_two(unsigned long long address, const unsigned* x) { store_all<unsigned, 2>(address, x); }

template <class T>
static inline void load_one(unsigned long long address, T& x) { x = *reinterpret_cast<const T*>(address); }

template <class T>
static inline void store_one(unsigned long long address, T x) { *reinterpret_cast<T*>(address) = x; }

static inline float half_to_float(unsigned short bits) {
    const unsigned sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00) return __uint_as_float(sign | 0x7f800000u | (magnitude & 0x3ff) << 13);
    const float x = __uint_as_float(magnitude << 13) * 0x1p112f;  // also right for subnormal numbers
    return __uint_as_float(sign | __float_as_uint(x));
}

static inline unsigned short float_to_half(float x) {
    const unsigned sign = __float_as_uint(x) >> 16 & 0x8000u;
    const float magnitude = std::fabs(x);
    if (x != x) return 0x7fff;
    if (magnitude >= 65520.0f) return sign | 0x7c00u;
    if (magnitude < 0x1p-14f) return sign | static_cast<unsigned>(std::nearbyint(magnitude * 0x1p24f));
    const unsigned bits = __float_as_uint(magnitude) - (112u << 23);
    return sign | (bits + 0xfff + (bits >> 13 & 1)) >> 13;
}

// See update.h.
#include <atomic>

#include "pool.h"
#include "rules.inl"
#include "update.h"
#include "vector.h"

namespace native {
namespace INSTRUCTIONS {

constexpr long UPDATE_BLOCK = 1024;  // elements: what is computed on the way stays in the first-level cache

// Calls body(parameter, first, count) for all blocks, on all threads.
template <class Body>
void each_block(const Work &work, const Body &body) {
    parallel(work.task_count, [&](long task) {
        for (long i = work.tasks[task]; i < work.tasks[task + 1]; ++i) {
            const Piece &piece = work.pieces[i];
            for (long first = piece.first; first < piece.last; first += UPDATE_BLOCK) {
                long rest = piece.last - first;
                body(work.updated[piece.number], first, rest < UPDATE_BLOCK ? rest : UPDATE_BLOCK);
            }
        }
    });
}

inline void unscale(const Updated &updated, long first, long count, float *out) {
    of_dtype(updated.gradient_dtype, [&](auto tag) {
        auto *source = static_cast<const typename decltype(tag)::type *>(updated.gradient) + first;
        Vector inverse = spread(updated.inverse);
        vectors(0, count, [&](long i, long n) { store_n(out + i, multiply(load_n(source + i, n), inverse), n); });
    });
}

inline void run_hooks(const Work &work, const float (*numbers)[MOST_NUMBERS], const float *p, float *g, long count) {
    for (int hook = 0; hook < work.hook_count; ++hook) HOOKS[work.hooks[hook]](numbers[hook], p, g, count);
}

inline bool all_finite(const float *x, long count) {
    uint32_t largest = 0;
    for (long i = 0; i < count; ++i) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7fffffff;
        largest = bits > largest ? bits : largest;
    }
    return largest < 0x7f800000;
}

void take_over(const Updated &updated, long first, long count) {
    of_dtype(updated.dtype, [&](auto tag) {
        using Stored = typename decltype(tag)::type;
        auto *param = static_cast<const Stored *>(updated.param) + first;
        auto *shadow = static_cast<Stored *>(updated.shadow) + first;
        float *master = updated.master + first;
        memcpy(shadow, param, count * sizeof(Stored));
        vectors(0, count, [&](long i, long n) {
            float wide[LANES], own[LANES];
            Stored rounded[LANES];
            store(wide, load_n(param + i, n));
            store(own, load_n(master + i, n));
            store(rounded, load(own));
            for (long k = 0; k < n; ++k)
                if (memcmp(rounded + k, param + i + k, sizeof(Stored))) master[i + k] = wide[k];
        });
    });
}

int check_gradients(const Work &work, const float (*hook_numbers)[MOST_NUMBERS]) {
    std::atomic<int> found{GRADIENTS_ARE_FINITE | FINITE_AFTER_HOOKS};
    each_block(work, [&](const Updated &updated, long first, long count) {
        const auto *param = static_cast<const char *>(updated.param), *shadow = static_cast<char *>(updated.shadow);
        if (param && memcmp(param + first * 2, shadow + first * 2, count * 2)) take_over(updated, first, count);
        if (!updated.gradient) return;
        alignas(64) float g[UPDATE_BLOCK];
        unscale(updated, first, count, g);
        if (!all_finite(g, count)) {
            found.store(0, std::memory_order_relaxed);
        } else if (work.hook_count) {
            run_hooks(work, hook_numbers, updated.master + first, g, count);
            if (!all_finite(g, count)) found.fetch_and(~FINITE_AFTER_HOOKS, std::memory_order_relaxed);
        }
    });
    return found;
}

void update_all(const Work &work, const float (*hook_numbers)[MOST_NUMBERS], const float *numbers) {
    each_block(work, [&](const Updated &updated, long first, long count) {
        alignas(64) float g[UPDATE_BLOCK];
        float *master = updated.master + first, *states[MOST_STATES];
        for (int i = 0; i < MOST_STATES; ++i) states[i] = updated.states[i] ? updated.states[i] + first : nullptr;
        unscale(updated, first, count, g);
        run_hooks(work, hook_numbers, master, g, count);
        RULES[work.rule](numbers, master, g, states, count);
        if (!updated.param) return;
        of_dtype(updated.dtype, [&](auto tag) {
            using Stored = typename decltype(tag)::type;
            auto *param = static_cast<Stored *>(updated.param) + first;
            auto *shadow = static_cast<Stored *>(updated.shadow) + first;
            vectors(0, count, [&](long i, long n) {
                Vector v = load_n(master + i, n);
                store_n(param + i, v, n);
                store_n(shadow + i, v, n);
            });
        });
    });
}

}  // namespace INSTRUCTIONS
}  // namespace native

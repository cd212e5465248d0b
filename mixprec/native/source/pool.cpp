// A pool of threads. Tasks are taken one by one, so that a thread that has to wait for a processor, as another program
// has it, holds up one task only. A thread without work looks for some for a few microseconds and then sleeps: it takes
// no processor from others. A forked child starts without threads and makes its own.
#include "pool.h"

#include <atomic>
#include <pthread.h>
#include <signal.h>

namespace native {
namespace {

constexpr int LOOKS = 2000;  // pauses of about 20 to 60 us all together

struct Job {
    void (*task)(void *, long);
    void *context;
    long count;
    int workers;        // the most that take part
    unsigned rounding;  // how the caller rounds and treats subnormal numbers, MXCSR
};

pthread_mutex_t calling = PTHREAD_MUTEX_INITIALIZER;  // held during a call
pthread_mutex_t state = PTHREAD_MUTEX_INITIALIZER;    // of what follows
pthread_cond_t work = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER;
Job job;
int started = 0, active = 0, sleeping = 0;  // workers
std::atomic<int> wanted{1};
std::atomic<long> next_task{0};
std::atomic<unsigned> calls{0};
std::atomic<int> running{0};  // the same as active, to be looked at without the lock
thread_local bool is_inside = false;

inline void pause() { __builtin_ia32_pause(); }
inline unsigned rounding() { return __builtin_ia32_stmxcsr(); }
inline void set_rounding(unsigned rounding) { __builtin_ia32_ldmxcsr(rounding); }

void take(const Job &now) {
    is_inside = true;
    set_rounding(now.rounding);
    for (long number; (number = next_task.fetch_add(1, std::memory_order_relaxed)) < now.count;)
        now.task(now.context, number);
    is_inside = false;
}

void *worker(void *) {
    unsigned seen = 0;
    int looks = LOOKS;
    for (;;) {
        for (int look = 0; look < looks && calls.load(std::memory_order_acquire) == seen; ++look) pause();
        pthread_mutex_lock(&state);
        while (calls.load(std::memory_order_relaxed) == seen) {
            ++sleeping;
            pthread_cond_wait(&work, &state);
            --sleeping;
        }
        seen = calls.load(std::memory_order_relaxed);
        Job now = job;  // without tasks, if the call is over
        bool is_needed = now.count && active < now.workers;
        if (is_needed) running.store(++active, std::memory_order_relaxed);
        pthread_mutex_unlock(&state);
        looks = now.count && !is_needed ? 0 : LOOKS;  // one too many sleeps at once
        if (!is_needed) continue;
        take(now);
        pthread_mutex_lock(&state);
        running.store(--active, std::memory_order_release);
        if (!active) pthread_cond_signal(&done);
        pthread_mutex_unlock(&state);
    }
    return nullptr;
}

void after_fork() {  // in the child, which has the calling thread only
    pthread_mutex_init(&calling, nullptr);
    pthread_mutex_init(&state, nullptr);
    pthread_cond_init(&work, nullptr);
    pthread_cond_init(&done, nullptr);
    job = {};
    started = active = sleeping = 0;
    running = 0;
}

void start_workers(int count) {  // with `calling` held
    static bool is_registered = false;
    if (!is_registered) is_registered = !pthread_atfork(nullptr, nullptr, after_fork);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's own threads
    for (; started < count; ++started) {
        pthread_t thread;
        if (pthread_create(&thread, nullptr, worker, nullptr)) break;  // those that are there do all
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

void set_threads(int count) { wanted = count < 1 ? 1 : count > MOST_THREADS ? MOST_THREADS : count; }

int threads() { return wanted; }

void run_tasks(long count, void (*task)(void *, long), void *context) {
    const int workers = wanted - 1;
    if (count <= 1 || !workers || is_inside || pthread_mutex_trylock(&calling)) {
        for (long number = 0; number < count; ++number) task(context, number);
        return;
    }
    start_workers(workers);
    Job now = {task, context, count, workers, rounding()};
    pthread_mutex_lock(&state);
    job = now;
    next_task.store(0, std::memory_order_relaxed);
    calls.fetch_add(1, std::memory_order_release);
    // No more threads than tasks are woken, and none beyond the number of workers: there are more than that after a
    // smaller number was set. One that was woken before and has not run yet may be counted here: then the others take
    // its tasks.
    long awake = started - sleeping, wakes = workers - awake < count - 1 ? workers - awake : count - 1;
    for (; wakes > 0; --wakes) pthread_cond_signal(&work);
    pthread_mutex_unlock(&state);
    take(now);
    for (int look = 0; look < LOOKS && running.load(std::memory_order_acquire); ++look) pause();
    pthread_mutex_lock(&state);
    job.count = 0;
    while (active) pthread_cond_wait(&done, &state);
    pthread_mutex_unlock(&state);
    pthread_mutex_unlock(&calling);
}

}  // namespace native

// Threads of this library, which share the tasks of one call. See pool.cpp.
#pragma once

namespace native {

constexpr long LEAST = 1 << 15;  // elements of a part: about 10 us
constexpr int MOST_THREADS = 256;

// Runs task(context, 0) to task(context, count - 1) on the threads, in any order, and returns when all are done. A call
// from inside of a task, or while another thread of the program is in a call, runs them one by one.
void run_tasks(long count, void (*task)(void *context, long number), void *context);

// How many threads take part, the caller among them; from 1 to MOST_THREADS.
void set_threads(int count);
int threads();

// Calls body(number) for each number below count.
template <class Body>
void parallel(long count, const Body &body) {
    run_tasks(
        count, [](void *context, long number) { (*static_cast<const Body *>(context))(number); },
        const_cast<Body *>(&body));
}

// Calls body(start, stop) for parts of 0 to size, of at least `least` elements each; all starts are multiples of 64.
template <class Body>
void parallel_parts(long size, long least, const Body &body) {
    long parts = size / least, most = 4L * threads();
    if (parts > most) parts = most;
    if (threads() == 1 || parts <= 1) {
        if (size > 0) body(0L, size);
        return;
    }
    long step = ((size + parts - 1) / parts + 63) / 64 * 64;
    parallel((size + step - 1) / step, [&](long number) {
        long start = number * step;
        body(start, start + step < size ? start + step : size);
    });
}

}  // namespace native

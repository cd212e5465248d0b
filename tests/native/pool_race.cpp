// Three threads call the pool at once, while a fourth changes the number of threads. Then one thread calls it: as many
// take part as it says, after a larger and a smaller number. Under ThreadSanitizer:
//   g++ -std=c++17 -O1 -g -fsanitize=thread -pthread -I mixprec/native/source tests/native/pool_race.cpp \
//       mixprec/native/source/pool.cpp -o pool_race && ./pool_race
#include <atomic>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "pool.h"

static void *call(void *) {
    for (long round = 0; round < 20000; ++round) {
        long results[37] = {};
        native::parallel(37, [&](long number) { results[number] = number + round; });
        for (long number = 0; number < 37; ++number)
            if (results[number] != number + round) abort();
        if (round % 1000 == 0) usleep(200);  // threads of the pool fall asleep
    }
    return nullptr;
}

static thread_local long seen = 0;

// How many threads take part in a call. If `is_together`, no task ends before so many others have begun.
static int threads_of_a_call(int tasks, bool is_together) {
    static long call = 0;
    ++call;
    std::atomic<int> begun{0}, threads{0};
    native::parallel(tasks, [&](long) {
        if (seen != call) ++threads;
        seen = call;
        ++begun;
        while (is_together && begun < tasks) usleep(10);
        usleep(20);
    });
    return threads;
}

static void check_numbers() {
    const int numbers[] = {6, 2, 9, 1, 3, 2, 5};
    for (int number : numbers) {
        native::set_threads(number);
        for (int round = 0; round < 20; ++round) {
            if (threads_of_a_call(40, false) > number) abort();
            if (threads_of_a_call(number, true) != number) abort();
        }
    }
}

int main() {
    alarm(300);  // should a thread not take part
    native::set_threads(4);
    pthread_t callers[3];
    for (pthread_t &caller : callers) pthread_create(&caller, nullptr, call, nullptr);
    for (int count = 0; count < 100; ++count) {
        native::set_threads(2 + count % 5);
        usleep(1000);
    }
    for (pthread_t &caller : callers) pthread_join(caller, nullptr);
    check_numbers();
    puts("ok");
}

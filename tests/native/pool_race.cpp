// Three threads call the pool at once, while a fourth changes the number of threads. Under ThreadSanitizer:
//   g++ -std=c++17 -O1 -g -fsanitize=thread -pthread -I mixprec/native/source tests/native/pool_race.cpp \
//       mixprec/native/source/pool.cpp -o pool_race && ./pool_race
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

int main() {
    native::set_threads(4);
    pthread_t callers[3];
    for (pthread_t &caller : callers) pthread_create(&caller, nullptr, call, nullptr);
    for (int count = 0; count < 100; ++count) {
        native::set_threads(2 + count % 5);
        usleep(1000);
    }
    for (pthread_t &caller : callers) pthread_join(caller, nullptr);
    puts("ok");
}

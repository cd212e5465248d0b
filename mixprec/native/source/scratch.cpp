// See scratch.h.
#include "scratch.h"

#include <cstdlib>
#include <pthread.h>

namespace native {
namespace {

pthread_key_t key;
bool has_key = false;
pthread_once_t once = PTHREAD_ONCE_INIT;

struct Room {
    float *memory;
    size_t floats;
};

void release(void *room) {  // at the end of a thread
    free(static_cast<Room *>(room)->memory);
    free(room);
}

}  // namespace

float *scratch(size_t floats) {
    pthread_once(&once, [] { has_key = !pthread_key_create(&key, release); });
    if (!has_key) return nullptr;
    auto *room = static_cast<Room *>(pthread_getspecific(key));
    if (!room) {
        room = static_cast<Room *>(calloc(1, sizeof(Room)));
        if (!room) return nullptr;
        if (pthread_setspecific(key, room)) {
            free(room);
            return nullptr;
        }
    }
#ifdef __SANITIZE_ADDRESS__
    constexpr bool IS_EXACT = true;  // the sanitizer then sees what goes beyond it
#else
    constexpr bool IS_EXACT = false;
#endif
    if (room->floats < floats || (IS_EXACT && room->floats > floats)) {
        free(room->memory);
        room->floats = 0;
        void *memory = nullptr;
        room->memory = posix_memalign(&memory, 64, floats * sizeof(float)) ? nullptr : static_cast<float *>(memory);
        if (room->memory) room->floats = floats;
    }
    return room->memory;
}

}  // namespace native

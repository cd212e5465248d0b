// Memory of each thread for what a task computes in between; it stays for the next task.
#pragma once

#include <cstddef>

namespace native {

// Returns at least so many floats, aligned to 64 bytes, or null. A second call gives the same memory again.
float *scratch(size_t floats);

}  // namespace native

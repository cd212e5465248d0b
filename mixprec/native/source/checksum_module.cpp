// CRC-32C by the processor's own instruction, of SSE4.2, which every processor with AVX2 has.
#include "arguments.h"
#include "module.h"

#include <cstdint>
#include <cstring>
#include <nmmintrin.h>

namespace native {
namespace {

__attribute__((target("sse4.2"))) uint32_t crc32c_of(const unsigned char *data, long size) {
    uint64_t crc = 0xFFFFFFFF;
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        crc = _mm_crc32_u64(crc, word);
    }
    for (; size; ++data, --size) crc = _mm_crc32_u8(uint32_t(crc), *data);
    return uint32_t(crc) ^ 0xFFFFFFFF;
}

PyObject *crc32c(PyObject *, PyObject *const *given, Py_ssize_t count) {
    Arguments arguments("crc32c", given, count);
    auto data = arguments.bytes("data");
    if (!arguments.done()) return nullptr;
    uint32_t crc;
    Py_BEGIN_ALLOW_THREADS;
    crc = crc32c_of(static_cast<const unsigned char *>(data.data), data.size);
    Py_END_ALLOW_THREADS;
    return PyLong_FromUnsignedLong(crc);
}

}  // namespace

PyMethodDef checksum_methods[] = {
    {"crc32c", METHOD(crc32c), METH_FASTCALL, "crc32c(data): returns the checksum of bytes."},
    {},
};

}  // namespace native

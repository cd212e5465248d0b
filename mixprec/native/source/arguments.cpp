// See arguments.h.
#include "arguments.h"

#include <cstdarg>
#include <cstring>

namespace native {
namespace {

// The whole format of a buffer, which may be left out for bytes.
const char *text_of(const Py_buffer &buffer) { return buffer.format ? buffer.format : "B"; }

}  // namespace

Arguments::Arguments(const char *function, PyObject *const *given, Py_ssize_t count)
    : function_(function), given_(given), count_(count) {}

Arguments::~Arguments() {
    while (held_) PyBuffer_Release(&buffers_[--held_]);
}

void Arguments::refuse(const char *format, ...) {
    if (failed_) return;
    failed_ = true;
    va_list values;
    va_start(values, format);
    PyObject *text = PyUnicode_FromFormatV(format, values);
    va_end(values);
    if (text) PyErr_Format(PyExc_ValueError, "%s: %U", function_, text);
    Py_XDECREF(text);
}

void Arguments::refuse_buffer(const char *name) {
    if (!PyErr_ExceptionMatches(PyExc_ValueError) && !PyErr_ExceptionMatches(PyExc_BufferError) &&
        !PyErr_ExceptionMatches(PyExc_TypeError)) {
        failed_ = true;
        return;
    }
    PyObject *type, *reason, *trace;
    PyErr_Fetch(&type, &reason, &trace);
    if (reason)
        refuse("%s must be a C-contiguous array: %S", name, reason);
    else
        refuse("%s must be a C-contiguous array", name);
    Py_XDECREF(type);
    Py_XDECREF(reason);
    Py_XDECREF(trace);
}

PyObject *Arguments::next(const char *name) {
    if (failed_) return nullptr;
    if (taken_ == count_) {
        refuse("%s is missing", name);
        return nullptr;
    }
    return given_[taken_++];
}

Arguments::Array Arguments::of(PyObject *object, const char *name, bool written, const char *formats) {
    Array array;
    if (!object) return array;
    if (held_ == MOST) {
        refuse("too many arrays");
        return array;
    }
    Py_buffer *buffer = &buffers_[held_];
    int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (written ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object, buffer, flags)) {
        refuse_buffer(name);
        return array;
    }
    written_[held_] = written;
    names_[held_++] = name;
    char format = format_of(*buffer);
    if (!format || !strchr(formats, format)) {
        refuse("%s has format '%s', not one of '%s'", name, text_of(*buffer), formats);
        return array;
    }
    if (buffer->itemsize && reinterpret_cast<uintptr_t>(buffer->buf) % buffer->itemsize) {
        refuse("%s is not aligned", name);
        return array;
    }
    array.data = buffer->buf;
    array.size = buffer->itemsize ? buffer->len / buffer->itemsize : 0;
    array.dtype = format == 'f' ? FLOAT : format == 'e' ? HALF : BFLOAT;
    return array;
}

Arguments::Array Arguments::array(const char *name, bool written) { return of(next(name), name, written, "feH"); }

Arguments::Array Arguments::array(const char *name, Dtype dtype, long size, bool written) {
    Array array = of(next(name), name, written, dtype == FLOAT ? "f" : dtype == HALF ? "e" : "H");
    if (ok() && array.size != size) refuse("%s has %zd elements, not %ld", name, Py_ssize_t(array.size), size);
    return array;
}

Arguments::Array Arguments::optional(const char *name, Dtype dtype, long size, bool written) {
    if (!failed_ && taken_ < count_ && given_[taken_] == Py_None) {
        ++taken_;
        return Array();
    }
    return array(name, dtype, size, written);
}

Arguments::Array Arguments::bytes(const char *name) { return of(next(name), name, false, "B?"); }

unsigned char *Arguments::bytes(const char *name, long size, bool written) {
    Array array = of(next(name), name, written, "B?");
    if (ok() && array.size != size) refuse("%s has %zd elements, not %ld", name, Py_ssize_t(array.size), size);
    return static_cast<unsigned char *>(array.data);
}

double *Arguments::doubles(const char *name, long size, bool written) {
    Array array = of(next(name), name, written, "d");
    if (ok() && array.size != size) refuse("%s has %zd elements, not %ld", name, Py_ssize_t(array.size), size);
    return static_cast<double *>(array.data);
}

const uint64_t *Arguments::words(const char *name, long size) {
    Array array = of(next(name), name, false, sizeof(long) == 8 ? "LQ" : "Q");
    if (ok() && array.size != size) refuse("%s has %zd elements, not %ld", name, Py_ssize_t(array.size), size);
    return static_cast<const uint64_t *>(array.data);
}

unsigned char *Arguments::optional_bytes(const char *name, long size, bool written) {
    if (!failed_ && taken_ < count_ && given_[taken_] == Py_None) {
        ++taken_;
        return nullptr;
    }
    return bytes(name, size, written);
}

long Arguments::integer(const char *name, long least, long most) {
    PyObject *object = next(name);
    if (!object) return 0;
    long value = PyLong_AsLong(object);
    if (value == -1 && PyErr_Occurred()) {
        failed_ = true;
        return 0;
    }
    if (value < least || value > most) refuse("%s is %ld, not between %ld and %ld", name, value, least, most);
    return ok() ? value : 0;
}

double Arguments::number(const char *name, double least, double most) {
    PyObject *object = next(name);
    if (!object) return 0;
    double value = PyFloat_AsDouble(object);
    if (value == -1 && PyErr_Occurred()) {
        failed_ = true;
        return 0;
    }
    if (!(value >= least && value <= most)) refuse("%s is not between %d and %d", name, int(least), int(most));
    return ok() ? value : 0;
}

void Arguments::integers(const char *name, long *values, int count, long least, long most) {
    for (int i = 0; i < count; ++i) values[i] = 0;
    PyObject *object = next(name);
    if (!object) return;
    if (!PyTuple_Check(object) || PyTuple_Size(object) != count) {
        refuse("%s must be a tuple of %d integers", name, count);
        return;
    }
    for (int i = 0; i < count; ++i) {
        long value = PyLong_AsLong(PyTuple_GetItem(object, i));
        if (value == -1 && PyErr_Occurred()) {
            failed_ = true;
            return;
        }
        if (value < least || value > most) {
            refuse("%s has %ld, not between %ld and %ld", name, value, least, most);
            return;
        }
        values[i] = value;
    }
}

bool Arguments::done(bool in_place) {
    if (ok() && taken_ < count_) refuse("%zd arguments too many", count_ - taken_);
    for (int i = 0; ok() && i < held_; ++i)
        for (int j = 0; ok() && j < held_; ++j) {
            const Py_buffer &one = buffers_[i], &other = buffers_[j];
            auto start = static_cast<const char *>(one.buf), of_other = static_cast<const char *>(other.buf);
            if (i == j || !written_[i] || start >= of_other + other.len || of_other >= start + one.len) continue;
            if (!(in_place && start == of_other && one.len == other.len))
                refuse("%s and %s share memory", names_[i], names_[j]);
        }
    return ok();
}

char format_of(const Py_buffer &buffer) {
    const char *format = text_of(buffer);
    if (*format == '<') ++format;
    return strlen(format) == 1 ? *format : 0;
}

long product(const long *sizes, int count) {
    long result = 1;
    for (int i = 0; i < count; ++i)
        if (sizes[i] < 0 || __builtin_mul_overflow(result, sizes[i], &result)) return -1;
    return result;
}

}  // namespace native

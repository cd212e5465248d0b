// Arguments of the functions that Python calls. All of them are checked before a kernel runs: a wrong one is a
// ValueError or TypeError, and no argument can make a kernel read or write beyond an array. What NumPy documents as
// unsafe can: array.resize(refcheck=False) frees memory that a table holds.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "dtypes.h"

namespace native {

// The arguments of one call, taken one after the other. After the first wrong one all that follow are empty or 0, and
// ok() is false.
class Arguments {
  public:
    Arguments(const char *function, PyObject *const *given, Py_ssize_t count);
    ~Arguments();
    Arguments(const Arguments &) = delete;

    // An array: C-contiguous, aligned; bfloat16 comes as uint16.
    struct Array {
        void *data = nullptr;
        long size = 0;  // elements
        Dtype dtype = FLOAT;
    };
    Array array(const char *name, bool written = false);           // in a storage dtype
    Array array(const char *name, Dtype dtype, long size, bool written = false);
    Array optional(const char *name, Dtype dtype, long size, bool written = false);  // without data for None
    Array bytes(const char *name);                                            // uint8 or bool, of any size
    unsigned char *bytes(const char *name, long size, bool written = false);  // uint8 or bool
    double *doubles(const char *name, long size, bool written = false);       // float64
    const uint64_t *words(const char *name, long size);                       // uint64
    unsigned char *optional_bytes(const char *name, long size, bool written = false);

    long integer(const char *name, long least, long most);
    double number(const char *name, double least, double most);  // not NaN
    // Integers of a tuple, into `values`.
    void integers(const char *name, long *values, int count, long least, long most);

    void refuse(const char *format, ...);  // sets a ValueError, if there is no error yet
    // Whether all arguments were taken and are right; call it last. No array that is written shares memory with another
    // one, but in_place lets it be all of the same memory.
    bool done(bool in_place = false);
    bool ok() const { return !failed_; }

  private:
    static constexpr int MOST = 24;
    PyObject *next(const char *name);
    Array of(PyObject *object, const char *name, bool written, const char *formats);
    void refuse_buffer(const char *name);  // with the error that Python has for it

    const char *function_;
    PyObject *const *given_;
    Py_ssize_t count_, taken_ = 0;
    Py_buffer buffers_[MOST];
    const char *names_[MOST];
    bool written_[MOST];
    int held_ = 0;
    bool failed_ = false;
};

// The one letter of a buffer's format, without the mark of this machine's byte order that arrays from HDF5 files have;
// 0 if it is none.
char format_of(const Py_buffer &buffer);

// The product of sizes, or -1 if it does not fit.
long product(const long *sizes, int count);

// Runs body without Python's lock, and returns None.
template <class Body>
PyObject *run(const Body &body) {
    Py_BEGIN_ALLOW_THREADS;
    body();
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

// Runs a body that returns whether there was memory.
template <class Body>
PyObject *run_with_memory(const Body &body) {
    bool done;
    Py_BEGIN_ALLOW_THREADS;
    done = body();
    Py_END_ALLOW_THREADS;
    if (!done) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

}  // namespace native

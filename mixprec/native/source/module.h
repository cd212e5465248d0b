// The functions of the Python module, by the files that have them.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define METHOD(function) reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function))

namespace native {

extern PyMethodDef batch_norm_methods[], checksum_methods[], convolution_methods[], elementwise_methods[],
    pooling_methods[], update_methods[];

}  // namespace native

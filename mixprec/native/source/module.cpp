// The Python module mixprec.native._library. Importing it fails where the processor has none of the
// instruction sets.
#include "module.h"

#include "arguments.h"
#include "kernels.h"
#include "pool.h"
#include "processor.h"

#include <climits>
#if __has_include(<malloc.h>)
#include <malloc.h>
#endif

namespace native {

extern const Kernels AVX2, AVX512;
extern const Convolutions AVX512_BF16;
extern const Convolutions AMX __attribute__((weak));  // missing where the assembler did not know it, see setup.py
const Kernels *kernels = nullptr;

namespace {

Kernels chosen;
const char *name = nullptr;

enum Set { USE_AVX2, USE_AVX512, USE_AVX512_BF16, USE_AMX };

// Chooses the best of the sets up to one. Returns whether the processor has any.
bool choose(Set most) {
    const Processor processor;
    if (!processor.avx2) return false;
    chosen = AVX2, name = "AVX2";
    if (most >= USE_AVX512 && processor.avx512) chosen = AVX512, name = "AVX-512";
    // On Intel only if it is asked for: float32 products have twice its rate there.
    if (processor.bf16 && (most == USE_AVX512_BF16 || (most > USE_AVX512_BF16 && !processor.is_intel)))
        chosen.convolutions[BFLOAT] = AVX512_BF16, name = "AVX-512 with BF16";
    if (most >= USE_AMX && &AMX && processor.amx && processor.may_use_amx())
        chosen.convolutions[BFLOAT] = AMX, name = "AVX-512 with AMX";
    kernels = &chosen;
    return true;
}

template <Set MOST>
PyObject *use(PyObject *, PyObject *) {
    choose(MOST);
    Py_RETURN_NONE;
}

PyObject *instructions(PyObject *, PyObject *) { return PyUnicode_FromString(name); }

// Of which sources this is, see mixprec/native/sources.py.
PyObject *sources(PyObject *, PyObject *) { return PyUnicode_FromString(SOURCES); }

PyObject *set_threads(PyObject *, PyObject *const *given, Py_ssize_t count) {
    Arguments arguments("set_threads", given, count);
    long number = arguments.integer("count", 1, MOST_THREADS);
    if (!arguments.done()) return nullptr;
    native::set_threads(int(number));
    Py_RETURN_NONE;
}

PyObject *keep_freed_memory(PyObject *, PyObject *) {
#ifdef M_TRIM_THRESHOLD
    mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the most that is possible; larger blocks go back to the system
    mallopt(M_TRIM_THRESHOLD, INT_MAX);
#endif
    Py_RETURN_NONE;
}

PyObject *threads(PyObject *, PyObject *) { return PyLong_FromLong(native::threads()); }

PyMethodDef methods[] = {
    {"use_best", use<USE_AMX>, METH_NOARGS, "Uses the best instruction set; requests the permission for AMX."},
    {"use_avx2", use<USE_AVX2>, METH_NOARGS, "Lets AVX-512 be, also where the processor has it."},
    {"use_avx512", use<USE_AVX512>, METH_NOARGS, "Lets AVX512_BF16 and AMX be, also where the processor has them."},
    {"use_avx512bf16", use<USE_AVX512_BF16>, METH_NOARGS, "Uses AVX512_BF16 where the processor has it, and not AMX."},
    {"instructions", instructions, METH_NOARGS, "Returns the name of the instruction set in use."},
    {"sources", sources, METH_NOARGS, "Returns the digest of the sources."},
    {"set_threads", METHOD(set_threads), METH_FASTCALL, "set_threads(count)"},
    {"keep_freed_memory", keep_freed_memory, METH_NOARGS,
     "Lets malloc keep up to 2 GB of freed memory: the system would hand it out again zeroed, page by page."},
    {"threads", threads, METH_NOARGS, "Returns how many threads compute."},
    {},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_library", nullptr, -1, methods};

}  // namespace
}  // namespace native

PyMODINIT_FUNC PyInit__library() {
    using namespace native;
    if (!choose(USE_AVX2)) {  // the caller chooses another one
        PyErr_SetString(PyExc_ImportError, "this processor has no AVX2 or FMA");
        return nullptr;
    }
    PyObject *module = PyModule_Create(&definition);
    if (!module) return nullptr;
    PyMethodDef *all[] = {batch_norm_methods, checksum_methods, convolution_methods, elementwise_methods,
                          pooling_methods, update_methods};
    for (PyMethodDef *some : all)
        if (PyModule_AddFunctions(module, some)) {
            Py_DECREF(module);
            return nullptr;
        }
    if (PyModule_AddIntMacro(module, MOST_THREADS)) {
        Py_DECREF(module);
        return nullptr;
    }
    return module;
}

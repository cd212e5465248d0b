// What Python calls of elementwise.h.
#include "arguments.h"
#include "kernels.h"
#include "module.h"

namespace native {
namespace {

PyObject *convert(PyObject *, PyObject *const *given, Py_ssize_t count) {
    Arguments arguments("convert", given, count);
    auto source = arguments.array("source"), target = arguments.array("target", true);
    if (arguments.ok() && source.size != target.size)
        arguments.refuse("source has %zd elements, target %zd", Py_ssize_t(source.size), Py_ssize_t(target.size));
    if (!arguments.done(true)) return nullptr;
    return run([&] {
        kernels->elementwise.convert(source.dtype, source.data, target.dtype, target.data, source.size);
    });
}

PyObject *add(PyObject *, PyObject *const *given, Py_ssize_t count) {
    Arguments arguments("add", given, count);
    auto a = arguments.array("a"), b = arguments.array("b", a.dtype, a.size);
    auto sum = arguments.array("sum", a.dtype, a.size, true);
    if (!arguments.done(true)) return nullptr;
    return run([&] { kernels->elementwise.add(a.dtype, a.data, b.data, sum.data, a.size); });
}

}  // namespace

PyMethodDef elementwise_methods[] = {
    {"convert", METHOD(convert), METH_FASTCALL, "convert(source, target): rounds or widens."},
    {"add", METHOD(add), METH_FASTCALL, "add(a, b, sum)"},
    {},
};

}  // namespace native

// What Python calls of elementwise.h.
#include "arguments.h"
#include "kernels.h"
#include "module.h"

namespace native {
namespace {

constexpr long MOST = 1L << 40;

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

PyObject *relu(PyObject *, PyObject *const *given, Py_ssize_t count) {
    Arguments arguments("relu", given, count);
    auto x = arguments.array("x"), y = arguments.array("y", x.dtype, x.size, true);
    if (!arguments.done()) return nullptr;
    return run([&] { kernels->elementwise.relu(x.dtype, x.data, y.data, x.size); });
}

PyObject *relu_backward(PyObject *, PyObject *const *given, Py_ssize_t count) {
    Arguments arguments("relu_backward", given, count);
    auto dy = arguments.array("dy"), y = arguments.array("y", dy.dtype, dy.size);
    auto dx = arguments.array("dx", dy.dtype, dy.size, true);
    if (!arguments.done()) return nullptr;
    return run([&] { kernels->elementwise.relu_backward(dy.dtype, dy.data, y.data, dx.data, dy.size); });
}

PyObject *dropout(PyObject *, PyObject *const *given, Py_ssize_t count) {
    Arguments arguments("dropout", given, count);
    auto x = arguments.array("x");
    double ratio = arguments.number("ratio", 0, 1);
    if (arguments.ok() && ratio == 1) arguments.refuse("ratio is 1");
    const uint64_t *key = arguments.words("key", 2);
    auto y = arguments.array("y", x.dtype, x.size, true);
    if (!arguments.done()) return nullptr;
    return run([&] { kernels->elementwise.dropout(x.dtype, x.data, ratio, key[0], key[1], y.data, x.size); });
}

PyObject *transpose(PyObject *, PyObject *const *given, Py_ssize_t count) {
    Arguments arguments("transpose", given, count);
    auto source = arguments.array("source"), target = arguments.array("target", true);
    long n[3], to[2];
    arguments.integers("shape", n, 3, 0, MOST);
    arguments.integers("to", to, 2, 0, MOST);
    long of_target[] = {n[0], to[0], to[1]};
    if (arguments.ok() && (product(n, 3) != source.size || product(of_target, 3) != target.size))
        arguments.refuse("the arrays are not of these shapes");
    if (arguments.ok() && (to[0] > n[2] || to[1] < n[1]))
        arguments.refuse("the target has too many rows or too few columns");
    if (!arguments.done()) return nullptr;
    return run([&] {
        if (target.size)
            kernels->elementwise.transpose(source.dtype, source.data, target.dtype, target.data, n[0], n[1], n[2],
                                           to[0], to[1]);
    });
}

}  // namespace

PyMethodDef elementwise_methods[] = {
    {"convert", METHOD(convert), METH_FASTCALL, "convert(source, target): rounds or widens."},
    {"add", METHOD(add), METH_FASTCALL, "add(a, b, sum)"},
    {"relu", METHOD(relu), METH_FASTCALL, "relu(x, y)"},
    {"relu_backward", METHOD(relu_backward), METH_FASTCALL, "relu_backward(dy, y, dx)"},
    {"dropout", METHOD(dropout), METH_FASTCALL, "dropout(x, ratio, key, y): the key is seed and sequence, uint64."},
    {"transpose", METHOD(transpose), METH_FASTCALL,
     "transpose(source, target, (count, rows, columns), (rows, columns) of the target)"},
    {},
};

}  // namespace native

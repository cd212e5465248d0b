// What Python calls of pooling.h.
#include "arguments.h"
#include "kernels.h"
#include "module.h"

namespace native {
namespace {

constexpr long MOST = 1L << 40, MOST_STEPS = 1L << 20;  // sizes; windows, strides and padding

// Takes sizes (N, H, W, C, OH, OW), window, stride and padding; large and small are the numbers of elements.
PoolWindows windows_of(Arguments &arguments, long &large, long &small) {
    long n[6], window[2], stride[2], pad[2];
    arguments.integers("sizes", n, 6, 0, MOST);
    arguments.integers("window", window, 2, 1, MOST_STEPS);
    arguments.integers("stride", stride, 2, 1, MOST_STEPS);
    arguments.integers("pad", pad, 2, 0, MOST_STEPS);
    long of_small[] = {n[0], n[4], n[5], n[3]};
    large = product(n, 4);
    small = product(of_small, 4);
    if (arguments.ok() && (large < 0 || small < 0)) arguments.refuse("too many elements");
    return {n[0],      n[1],      n[2],      n[3],   n[4],   n[5],  //
            window[0], window[1], stride[0], stride[1], pad[0], pad[1]};
}

PyObject *max_pool(PyObject *, PyObject *const *given, Py_ssize_t count) {
    Arguments arguments("max_pool", given, count);
    long large, small;
    auto x = arguments.array("x");
    PoolWindows windows = windows_of(arguments, large, small);
    auto y = arguments.array("y", x.dtype, small, true);
    unsigned char *where = arguments.bytes("where", small, true);
    if (arguments.ok() && x.size != large) arguments.refuse("x has %zd elements, not %ld", Py_ssize_t(x.size), large);
    if (arguments.ok() && windows.rows * windows.columns > 255)
        arguments.refuse("the window has more than 255 elements");
    if (!arguments.done()) return nullptr;
    return run([&] {
        if (small) kernels->pooling.max_pool(x.dtype, x.data, windows, y.data, where);
    });
}

PyObject *max_pool_backward(PyObject *, PyObject *const *given, Py_ssize_t count) {
    Arguments arguments("max_pool_backward", given, count);
    long large, small;
    auto dx = arguments.array("dx", true);
    PoolWindows windows = windows_of(arguments, large, small);
    auto dy = arguments.array("dy", dx.dtype, small);
    unsigned char *where = arguments.bytes("where", small);
    if (arguments.ok() && dx.size != large)
        arguments.refuse("dx has %zd elements, not %ld", Py_ssize_t(dx.size), large);
    if (!arguments.done()) return nullptr;
    return run([&] {
        if (large) kernels->pooling.max_pool_backward(dx.dtype, dy.data, where, windows, dx.data);
    });
}

PyObject *average_pool(PyObject *, PyObject *const *given, Py_ssize_t count) {
    Arguments arguments("average_pool", given, count);
    long large, small;
    auto x = arguments.array("x");
    PoolWindows windows = windows_of(arguments, large, small);
    auto y = arguments.array("y", x.dtype, small, true);
    if (arguments.ok() && x.size != large) arguments.refuse("x has %zd elements, not %ld", Py_ssize_t(x.size), large);
    if (!arguments.done()) return nullptr;
    return run([&] {
        if (small) kernels->pooling.average_pool(x.dtype, x.data, windows, y.data);
    });
}

PyObject *average_pool_backward(PyObject *, PyObject *const *given, Py_ssize_t count) {
    Arguments arguments("average_pool_backward", given, count);
    long large, small;
    auto dx = arguments.array("dx", true);
    PoolWindows windows = windows_of(arguments, large, small);
    auto dy = arguments.array("dy", dx.dtype, small);
    if (arguments.ok() && dx.size != large)
        arguments.refuse("dx has %zd elements, not %ld", Py_ssize_t(dx.size), large);
    if (!arguments.done()) return nullptr;
    return run([&] {
        if (large) kernels->pooling.average_pool_backward(dx.dtype, dy.data, windows, dx.data);
    });
}

PyObject *global_average_pool(PyObject *, PyObject *const *given, Py_ssize_t count) {
    Arguments arguments("global_average_pool", given, count);
    auto x = arguments.array("x");
    long n[3];  // images, pixels, channels
    arguments.integers("sizes", n, 3, 0, MOST);
    long of_means[] = {n[0], n[2]}, size = product(n, 3), means = product(of_means, 2);
    if (arguments.ok() && (means < 0 || x.size != size))
        arguments.refuse("x has %zd elements, not %ld", Py_ssize_t(x.size), size);
    auto y = arguments.array("y", x.dtype, means, true);
    if (!arguments.done()) return nullptr;
    return run([&] {
        if (means) kernels->pooling.global_average_pool(x.dtype, x.data, n[0], n[1], n[2], y.data);
    });
}

}  // namespace

PyMethodDef pooling_methods[] = {
    {"max_pool", METHOD(max_pool), METH_FASTCALL, "max_pool(x, sizes, window, stride, pad, y, where)"},
    {"max_pool_backward", METHOD(max_pool_backward), METH_FASTCALL,
     "max_pool_backward(dx, sizes, window, stride, pad, dy, where)"},
    {"average_pool", METHOD(average_pool), METH_FASTCALL, "average_pool(x, sizes, window, stride, pad, y)"},
    {"average_pool_backward", METHOD(average_pool_backward), METH_FASTCALL,
     "average_pool_backward(dx, sizes, window, stride, pad, dy)"},
    {"global_average_pool", METHOD(global_average_pool), METH_FASTCALL, "global_average_pool(x, sizes, y)"},
    {},
};

}  // namespace native

// What Python calls of batch_norm.h. Arrays are (rows, C) in one storage dtype, `channels` is C.
#include "arguments.h"
#include "kernels.h"
#include "module.h"

namespace native {
namespace {

constexpr long MOST = 1L << 40;

// Takes the number of channels, and returns that of rows; checks that the array has whole rows.
long rows_of(Arguments &arguments, const Arguments::Array &array, long &channels) {
    channels = arguments.integer("channels", 1, MOST);
    if (arguments.ok() && array.size % channels) arguments.refuse("%zd elements are no rows", Py_ssize_t(array.size));
    return arguments.ok() ? array.size / channels : 0;
}

// Takes a vector of one float32 for each channel, or None.
const float *floats(Arguments &arguments, const char *name, long channels) {
    return static_cast<float *>(arguments.optional(name, FLOAT, channels).data);
}

PyObject *moments(PyObject *, PyObject *const *given, Py_ssize_t count) {
    Arguments arguments("moments", given, count);
    long channels;
    auto x = arguments.array("x");
    long rows = rows_of(arguments, x, channels);
    double *means = arguments.doubles("means", channels, true);
    double *squares = arguments.doubles("squares", channels, true);
    if (arguments.ok() && !rows) arguments.refuse("no rows have no mean");
    if (!arguments.done()) return nullptr;
    return run_with_memory(
        [&] { return kernels->batch_norm.moments(x.dtype, x.data, rows, channels, means, squares); });
}

PyObject *affine(PyObject *, PyObject *const *given, Py_ssize_t count) {
    Arguments arguments("affine", given, count);
    long channels;
    auto x = arguments.array("x");
    long rows = rows_of(arguments, x, channels);
    auto scale = arguments.optional("scale", FLOAT, channels), bias = arguments.array("bias", FLOAT, channels);
    Added added = {arguments.optional("add", x.dtype, x.size).data, floats(arguments, "add_scale", channels),
                   floats(arguments, "add_bias", channels)};
    bool relu = arguments.integer("relu", 0, 1);
    unsigned char *mask = arguments.optional_bytes("mask", x.size, true);
    auto y = arguments.array("y", x.dtype, x.size, true);
    if (arguments.ok() && (!added.scale != !added.bias || (added.scale && !added.x)))
        arguments.refuse("add_scale needs add_bias, and both need add");
    if (!arguments.done()) return nullptr;
    return run([&] {
        kernels->batch_norm.affine(x.dtype, x.data, rows, channels, static_cast<float *>(scale.data),
                                   static_cast<float *>(bias.data), added, relu, mask, y.data);
    });
}

// Takes dy, channels, plus, scale, bias, mask.
Gradient gradient_of(Arguments &arguments, Arguments::Array &dy, long &rows, long &channels) {
    Gradient gradient;
    dy = arguments.array("dy");
    rows = rows_of(arguments, dy, channels);
    gradient.dy = dy.data;
    gradient.plus = arguments.optional("plus", dy.dtype, dy.size).data;
    gradient.scale = floats(arguments, "relu_scale", channels);
    gradient.bias = floats(arguments, "relu_bias", channels);
    gradient.mask = arguments.optional_bytes("mask", dy.size);
    if (arguments.ok() && !gradient.scale != !gradient.bias) arguments.refuse("a ReLU needs both scale and bias");
    return gradient;
}

PyObject *gradient_sums(PyObject *, PyObject *const *given, Py_ssize_t count) {
    Arguments arguments("gradient_sums", given, count);
    long rows, channels;
    Arguments::Array dy;
    Gradient gradient = gradient_of(arguments, dy, rows, channels);
    Centred x = {arguments.optional("x", dy.dtype, dy.size).data, floats(arguments, "mean", channels)};
    Centred other = {arguments.optional("other", dy.dtype, dy.size).data, floats(arguments, "other_mean", channels)};
    auto g = arguments.optional("g", dy.dtype, dy.size, true);
    double *products = arguments.doubles("products", (other.x ? 2 : 1) * channels, true);
    double *sums = arguments.doubles("sums", channels, true);
    if (arguments.ok() && (!x.x != !x.mean || (gradient.scale && !x.x)))
        arguments.refuse("a mean needs x, and so does a ReLU");
    if (arguments.ok() && (!other.x != !other.mean || (other.x && !g.data)))
        arguments.refuse("another x needs its mean, and g");
    if (!arguments.done()) return nullptr;
    return run_with_memory([&] {
        return kernels->batch_norm.gradient_sums(dy.dtype, gradient, x, other, rows, channels, g.data, products, sums);
    });
}

PyObject *combine(PyObject *, PyObject *const *given, Py_ssize_t count) {
    Arguments arguments("combine", given, count);
    long rows, channels;
    Arguments::Array dy;
    Gradient gradient = gradient_of(arguments, dy, rows, channels);
    auto x = arguments.array("x", dy.dtype, dy.size), scale = arguments.array("scale", FLOAT, channels);
    auto mean = arguments.optional("mean", FLOAT, channels), slope = arguments.optional("slope", FLOAT, channels);
    auto offset = arguments.optional("offset", FLOAT, channels), dx = arguments.array("dx", dy.dtype, dy.size, true);
    if (arguments.ok() && (!slope.data != !mean.data || !slope.data != !offset.data))
        arguments.refuse("a slope needs a mean and an offset");
    if (!arguments.done()) return nullptr;
    return run([&] {
        kernels->batch_norm.combine(dy.dtype, gradient, x.data, rows, channels, static_cast<float *>(scale.data),
                                    static_cast<float *>(mean.data), static_cast<float *>(slope.data),
                                    static_cast<float *>(offset.data), dx.data);
    });
}

}  // namespace

PyMethodDef batch_norm_methods[] = {
    {"moments", METHOD(moments), METH_FASTCALL, "moments(x, channels, means, squares)"},
    {"affine", METHOD(affine), METH_FASTCALL,
     "affine(x, channels, scale, bias, add, add_scale, add_bias, relu, mask, y)"},
    {"gradient_sums", METHOD(gradient_sums), METH_FASTCALL,
     "gradient_sums(dy, channels, plus, relu_scale, relu_bias, mask, x, mean, other, other_mean, g, products, sums)"},
    {"combine", METHOD(combine), METH_FASTCALL,
     "combine(dy, channels, plus, relu_scale, relu_bias, mask, x, scale, mean, slope, offset, dx)"},
    {},
};

}  // namespace native

// What Python calls of convolution.h.
#include "arguments.h"
#include "kernels.h"
#include "module.h"

namespace native {
namespace {

// The next three arguments: the shape of the input, that of the filters, and (stride, pad, dilation, groups) as seven
// integers. The numbers of elements of all arrays are known then.
struct Sizes : Convolution {
    long x = 0, w = 0, y = 0;

    explicit Sizes(Arguments &arguments) : Convolution() {
        constexpr long MOST = 1L << 31;  // a product of two of them is a long
        long input[4], filter[4], moves[7];
        arguments.integers("x_shape", input, 4, 1, MOST);
        arguments.integers("w_shape", filter, 4, 1, MOST);
        arguments.integers("convolution", moves, 7, 0, MOST);
        if (!arguments.ok()) return;
        images = input[0], input_channels = input[3], filters = filter[0], channels = filter[3], groups = moves[6];
        for (int i = 0; i < 2; ++i) {
            size[i] = input[1 + i], filter_size[i] = filter[1 + i];
            stride[i] = moves[i], pad[i] = moves[2 + i], dilation[i] = moves[4 + i];
            if (!stride[i] || !dilation[i] || !groups) {
                arguments.refuse("stride, dilation and groups are above 0");
                return;
            }
            long reach = size[i] + 2 * pad[i] - (filter_size[i] - 1) * dilation[i] - 1;
            if (reach < 0) {
                arguments.refuse("the filter is larger than the input");
                return;
            }
            out_size[i] = reach / stride[i] + 1;
        }
        if (filters % groups || channels > input_channels / groups) {
            arguments.refuse("%ld filters and %ld channels of %ld groups do not fit", filters, channels, groups);
            return;
        }
        long output[4] = {images, out_size[0], out_size[1], filters};
        x = product(input, 4), w = product(filter, 4), y = product(output, 4);
        if (x < 0 || w < 0 || y < 0 || w > 1L << 48) arguments.refuse("sizes are too large");
    }
};

PyObject *conv_fprop(PyObject *, PyObject *const *given, Py_ssize_t count) {
    Arguments arguments("conv_fprop", given, count);
    Sizes sizes(arguments);
    auto x = arguments.array("x"), w = arguments.array("w", x.dtype, sizes.w);
    auto b = arguments.optional("b", FLOAT, sizes.filters);
    bool relu = arguments.integer("relu", 0, 1);
    auto y = arguments.array("y", x.dtype, sizes.y, true);
    if (arguments.ok() && x.size != sizes.x) arguments.refuse("x has %ld elements, not %ld", x.size, sizes.x);
    if (!arguments.done()) return nullptr;
    return run_with_memory([&] {
        return kernels->convolutions[x.dtype].fprop(sizes, x.data, w.data, static_cast<float *>(b.data), relu, y.data);
    });
}

PyObject *conv_dgrad(PyObject *, PyObject *const *given, Py_ssize_t count) {
    Arguments arguments("conv_dgrad", given, count);
    Sizes sizes(arguments);
    auto dy = arguments.array("dy"), w = arguments.array("w", dy.dtype, sizes.w);
    auto dx = arguments.array("dx", dy.dtype, sizes.x, true);
    if (arguments.ok() && dy.size != sizes.y) arguments.refuse("dy has %ld elements, not %ld", dy.size, sizes.y);
    if (!arguments.done()) return nullptr;
    return run_with_memory([&] { return kernels->convolutions[dy.dtype].dgrad(sizes, dy.data, w.data, dx.data); });
}

PyObject *conv_wgrad(PyObject *, PyObject *const *given, Py_ssize_t count) {
    Arguments arguments("conv_wgrad", given, count);
    Sizes sizes(arguments);
    auto x = arguments.array("x"), dy = arguments.array("dy", x.dtype, sizes.y);
    auto dw = arguments.array("dw", x.dtype, sizes.w, true);
    if (arguments.ok() && x.size != sizes.x) arguments.refuse("x has %ld elements, not %ld", x.size, sizes.x);
    if (!arguments.done()) return nullptr;
    return run_with_memory([&] { return kernels->convolutions[x.dtype].wgrad(sizes, x.data, dy.data, dw.data); });
}

}  // namespace

PyMethodDef convolution_methods[] = {
    {"conv_fprop", METHOD(conv_fprop), METH_FASTCALL,
     "conv_fprop(x_shape, w_shape, (*stride, *pad, *dilation, groups), x, w, b, relu, y)"},
    {"conv_dgrad", METHOD(conv_dgrad), METH_FASTCALL,
     "conv_dgrad(x_shape, w_shape, (*stride, *pad, *dilation, groups), dy, w, dx)"},
    {"conv_wgrad", METHOD(conv_wgrad), METH_FASTCALL,
     "conv_wgrad(x_shape, w_shape, (*stride, *pad, *dilation, groups), x, dy, dw)"},
    {},
};

}  // namespace native

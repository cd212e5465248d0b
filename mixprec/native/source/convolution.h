// Two-dimensional convolutions: activations (N, H, W, C), filters (K, R, S, C / groups), as in
// mixprec/backends/primitives.py. A linear layer is one with filters of one pixel.
#pragma once

namespace native {

// The sizes of a convolution. Pairs are (vertical, horizontal).
struct Convolution {
    long images, size[2];  // of the input
    long input_channels;   // of its array: at least channels * groups, the others are not used
    long filters, filter_size[2], channels;  // channels of a filter
    long stride[2], pad[2], dilation[2], groups;
    long out_size[2];
};

// Of arrays of one storage dtype. All return whether there was memory for what they need beside their arrays.
struct Convolutions {
    // bias is null or (K,).
    bool (*fprop)(const Convolution &, const void *x, const void *w, const float *bias, bool relu, void *y);
    bool (*dgrad)(const Convolution &, const void *dy, const void *w, void *dx);
    bool (*wgrad)(const Convolution &, const void *x, const void *dy, void *dw);
};

}  // namespace native

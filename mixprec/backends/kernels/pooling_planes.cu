// Pooling of planes (depth, height, width) of NCHW; of two dimensions the depth is 1. A thread has one element of the
// result: an output, or, backward, an input, for which it looks up the windows that it is in. So each element is
// written once, and its sum has one order: that of the windows.
//
// What is outside a plane is not there: the padding, and whatever is beyond it. Blocks are numbered by groups of whole
// planes: within a group 32 bits are enough, and their division is cheap. Loops over windows are not unrolled, which
// would cost registers: many threads hide the time that memory takes, too.

#define AXES                                                                                                          \
    long long planes, long long planes_of_group, long long blocks_of_group, long long depth, long long out_depth,     \
        long long window_z, long long stride_z, long long pad_z, long long height, long long out_height,              \
        long long window_y, long long stride_y, long long pad_y, long long width, long long out_width,                \
        long long window_x, long long stride_x, long long pad_x

#define AXES_GIVEN                                                                                                    \
    {planes,                                                                                                          \
     u32(planes_of_group),                                                                                            \
     u32(blocks_of_group),                                                                                            \
     {int(depth), int(out_depth), int(window_z), int(stride_z), int(pad_z)},                                          \
     {int(height), int(out_height), int(window_y), int(stride_y), int(pad_y)},                                        \
     {int(width), int(out_width), int(window_x), int(stride_x), int(pad_x)}}

struct Range {
    int begin, end;

    __device__ __forceinline__ int count() const { return max(end - begin, 0); }
};

struct Axis {
    int size, outputs, window, stride, pad;

    // The inputs in the window of an output.
    __device__ __forceinline__ Range inputs_of(int output) const {
        const int first = output * stride - pad;
        return {max(first, 0), min(first + window, size)};
    }

    // The outputs in whose windows an input is.
    __device__ __forceinline__ Range outputs_of(int input) const {
        const int place = input + pad, beyond = place - window + 1;  // the first is beyond / stride, rounded up
        return {beyond > 0 ? (beyond + stride - 1) / stride : 0, min(place / stride + 1, outputs)};
    }
};

struct Axes {
    long long planes;
    u32 planes_of_group, blocks_of_group;
    Axis z, y, x;
};

// The number of an element in its plane.
__device__ __forceinline__ int number_of(int z, int y, int x, int height, int width) {
    return (z * height + y) * width + x;
}

// An element of the result.
struct Place {
    long long plane;
    int z, y, x;
    bool exists;

    __device__ __forceinline__ Place(const Axes& axes, int depth, int height, int width) {
        const u32 group = blockIdx.x / axes.blocks_of_group;
        const u32 i = (blockIdx.x - group * axes.blocks_of_group) * THREADS + threadIdx.x;
        const u32 area = static_cast<u32>(height) * width, size = area * depth;
        const u32 of_group = i / size, number = i - of_group * size;
        plane = static_cast<long long>(group) * axes.planes_of_group + of_group;
        exists = of_group < axes.planes_of_group && plane < axes.planes;
        z = number / area;
        y = (number - z * area) / width;
        x = number - z * area - y * width;
    }
};

// The inputs of an output.
struct Window {
    Range z, y, x;

    __device__ __forceinline__ Window(const Axes& axes, int oz, int oy, int ox)
        : z(axes.z.inputs_of(oz)), y(axes.y.inputs_of(oy)), x(axes.x.inputs_of(ox)) {}

    __device__ __forceinline__ int count() const { return z.count() * y.count() * x.count(); }
};

__device__ __forceinline__ float element(u64 address, long long i) {
    float value[1];
    load(address, i, value);
    return value[0];
}

// Gives an output what reduce(value) has made of all inputs of its window, in row-major order, and result(window) then.
template <class Reduce, class Result>
__device__ __forceinline__ void reduce_window(const Axes& axes, u64 x, u64 y, Reduce reduce, Result result) {
    const Place place(axes, axes.z.outputs, axes.y.outputs, axes.x.outputs);
    if (!place.exists) return;
    const Window window(axes, place.z, place.y, place.x);
    const int height = axes.y.size, width = axes.x.size;
    const long long inputs = place.plane * axes.z.size * height * width;
    for (int iz = window.z.begin; iz < window.z.end; ++iz) {
        for (int iy = window.y.begin; iy < window.y.end; ++iy) {
#pragma unroll 1
            for (int ix = window.x.begin; ix < window.x.end; ++ix) {
                reduce(element(x, inputs + number_of(iz, iy, ix, height, width)));
            }
        }
    }
    const long long outputs = place.plane * axes.z.outputs * axes.y.outputs * axes.x.outputs;
    const float value[1] = {result(window)};
    store(y, outputs + number_of(place.z, place.y, place.x, axes.y.outputs, axes.x.outputs), value);
}

extern "C" __global__ void __launch_bounds__(THREADS) max_of_planes(u64 x, u64 y, AXES) {
    float largest = __uint_as_float(0xff800000);  // -inf
    reduce_window(
        AXES_GIVEN, x, y,
        [&](float value) {
            if (value > largest || value != value) largest = value;  // a NaN stays: nothing is larger
        },
        [&](const Window&) { return largest; });
}

// Divided by all elements of the window, or by those that are there.
extern "C" __global__ void __launch_bounds__(THREADS) average_of_planes(u64 x, u64 y, long long by_whole, AXES) {
    const float whole = window_z * window_y * window_x;
    float sum = 0;
    reduce_window(
        AXES_GIVEN, x, y, [&](float value) { sum += value; },
        [&](const Window& window) { return sum / (by_whole ? whole : static_cast<float>(window.count())); });
}

// Gives an input the sum of term(first of the inputs, its own number among them, output, window) over the windows that
// it is in, divided.
template <class Term>
__device__ __forceinline__ void sum_of_windows(const Axes& axes, u64 dx, float divisor, Term term) {
    const Place place(axes, axes.z.size, axes.y.size, axes.x.size);
    if (!place.exists) return;
    const Range of_z = axes.z.outputs_of(place.z), of_y = axes.y.outputs_of(place.y), of_x = axes.x.outputs_of(place.x);
    const int own = number_of(place.z, place.y, place.x, axes.y.size, axes.x.size);
    const long long inputs = place.plane * axes.z.size * axes.y.size * axes.x.size;
    const long long outputs = place.plane * axes.z.outputs * axes.y.outputs * axes.x.outputs;
    float sum = 0;
    for (int oz = of_z.begin; oz < of_z.end; ++oz) {
        for (int oy = of_y.begin; oy < of_y.end; ++oy) {
#pragma unroll 1
            for (int ox = of_x.begin; ox < of_x.end; ++ox) {
                const int output = number_of(oz, oy, ox, axes.y.outputs, axes.x.outputs);
                sum += term(inputs, own, outputs + output, Window(axes, oz, oy, ox));
            }
        }
    }
    const float value[1] = {sum / divisor};
    store(dx, inputs + own, value);
}

__device__ __forceinline__ bool same(float a, float b) { return a == b || (a != a && b != b); }

// Whether no input of a window that comes before `own` is the largest, too. Where it all is 0, the first one is.
__device__ __forceinline__ bool is_first(
    const Axes& axes, u64 x, long long inputs, int own, float largest, const Window& window) {
    for (int iz = window.z.begin; iz < window.z.end; ++iz) {
        for (int iy = window.y.begin; iy < window.y.end; ++iy) {
#pragma unroll 1
            for (int ix = window.x.begin; ix < window.x.end; ++ix) {
                const int number = number_of(iz, iy, ix, axes.y.size, axes.x.size);
                if (number == own) return true;
                if (same(element(x, inputs + number), largest)) return false;
            }
        }
    }
    return true;
}

// Without a number of blocks the assembler takes 32 registers, and puts the rest into memory.
extern "C" __global__ void __launch_bounds__(THREADS, 4) max_of_planes_backward(u64 x, u64 y, u64 dy, u64 dx, AXES) {
    const Axes axes = AXES_GIVEN;
    sum_of_windows(axes, dx, 1, [&](long long inputs, int own, long long output, const Window& window) {
        const float largest = element(y, output);
        const bool is_it = same(element(x, inputs + own), largest) && is_first(axes, x, inputs, own, largest, window);
        return is_it ? element(dy, output) : 0.0f;
    });
}

extern "C" __global__ void __launch_bounds__(THREADS) average_of_planes_backward(
    u64 dy, u64 dx, long long by_whole, AXES) {
    const float whole = window_z * window_y * window_x;
    const float divisor = by_whole ? whole : 1.0f;
    sum_of_windows(AXES_GIVEN, dx, divisor, [&](long long, int, long long output, const Window& window) {
        return element(dy, output) / (by_whole ? 1.0f : static_cast<float>(window.count()));
    });
}

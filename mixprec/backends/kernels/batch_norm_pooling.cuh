// What the kernels of batch normalization, ReLU and max pooling in one have in common: images, and places in them.
//
// Windows are 3x3, with a stride of 2. Padding is at most 1, so that each has something inside. What is outside is read
// from the nearest place inside: a branch around it would put the loads after one another.
//
// After batch_norm_rows.cuh.

constexpr int CHANNELS = WIDTH > 1 ? 16 / SIZE<STORAGE> : 1;  // of a group, whose loads are under way together
constexpr int PAIR = CHANNELS > 1 ? 2 : 1;                      // channels that are rounded together

typedef ElementsOf<CHANNELS> Piece;

// Sizes, and how the number of a row is divided by the places in a line, and that by the lines of an image.
#define IMAGES                                                                                                        \
    long long height, long long width, long long out_height, long long out_width, long long pad_y, long long pad_x,   \
        long long lines, long long of_lines, long long line_shift, long long places, long long of_places,             \
        long long place_shift

#define IMAGES_GIVEN                                                                                                  \
    {int(height), int(width), int(out_height), int(out_width), int(pad_y), int(pad_x), int(channels),                 \
     {u32(lines), u32(of_lines), u32(line_shift)}, {u32(places), u32(of_places), u32(place_shift)}}

// A division by a number that the compiler does not know would take more registers than there are.
struct Divisor {
    u32 number, reciprocal, shift;

    __device__ __forceinline__ u32 of(u32 value, u32& rest) const {  // below 2**31
        const u32 found = static_cast<u64>(value) * reciprocal >> shift;
        rest = value - found * number;
        return found;
    }
};

struct Images {
    int height, width, out_height, out_width, pad_y, pad_x, channels;
    Divisor lines, places;
};

struct Place {
    u32 image, y, x;

    __device__ __forceinline__ Place(long long row, const Images& images) {
        image = images.lines.of(images.places.of(row, x), y);
    }
};

__device__ __forceinline__ int inside(int place, int size) { return min(max(place, 0), size - 1); }

// N lines and columns of an image; the nearest ones for those that are outside.
template <int N>
struct Window {
    long long line[N];  // indices of the first elements
    int column[N];      // from there on
    int y[N], x[N];

    __device__ __forceinline__ Window(
        u32 image, int top, int left, int step, int height, int width, int channels, int channel) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            y[i] = inside(top + i * step, height);
            x[i] = inside(left + i * step, width);
            line[i] = static_cast<u64>(image * height + y[i]) * static_cast<u32>(width * channels);
            column[i] = x[i] * channels + channel;
        }
    }

    __device__ __forceinline__ long long at(int i) const { return line[i / N] + column[i % N]; }
};

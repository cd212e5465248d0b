// What a filter sees at its positions, as rows of numbers; the pixels of padding are zeros.
#pragma once
#include "convolution.h"
#include "gemm.inl"

namespace native {
namespace INSTRUCTIONS {

// One axis of an image. Position i sees source[i * stride + offset + t * step] by element t of the filter, and its
// result goes to target[first + i * target_step]. Element t is that with index filter + t * filter_step.
struct Axis {
    long positions, source, stride, offset;
    long taps, step, filter, filter_step;
    long target, first, target_step;
};

struct Windows {
    long images;
    Axis axes[2];
    long source_channels;  // of the array
    long channels;         // of the filter
    bool is_joined;        // whether a row of the filter sees elements that follow each other
    long runs;             // parts of such elements in a row of the filter
    long run;              // elements of a part
    bool is_pixel;         // whether a window is one pixel
    bool is_image;         // whether it has the first three channels of more, as images have them

    void finish() {
        bool is_padded = axes[0].offset || axes[1].offset;
        is_pixel = axes[0].taps == 1 && axes[1].taps == 1 && !is_padded;
        is_joined = axes[1].step == 1 && channels == source_channels;
        runs = is_joined ? 1 : axes[1].taps;
        run = is_joined ? axes[1].taps * channels : channels;
    }
    long depth() const { return axes[0].taps * axes[1].taps * channels; }
    long positions() const { return images * axes[0].positions * axes[1].positions; }
    long target(long image, long i, long j) const {  // pixel
        const Axis &y = axes[0], &x = axes[1];
        return (image * y.target + y.first + i * y.target_step) * x.target + x.first + j * x.target_step;
    }
};

// A position of the filter, of all images one after the other.
struct Position {
    long image, i, j;
    Position(const Windows &windows, long number) {
        long width = windows.axes[1].positions, height = windows.axes[0].positions;
        j = number % width;
        i = number / width % height;
        image = number / width / height;
    }
    void next(const Windows &windows) {
        if (++j < windows.axes[1].positions) return;
        j = 0;
        if (++i < windows.axes[0].positions) return;
        i = 0;
        ++image;
    }
    long source(const Windows &windows) const {  // pixel where the window begins
        const Axis &y = windows.axes[0], &x = windows.axes[1];
        return (image * y.source + i * y.stride + y.offset) * x.source + j * x.stride + x.offset;
    }
};

// Where in the window an element stands.
struct Place {
    long tap, run, within;
    Place(const Windows &windows, long element) {
        within = element % windows.run;
        run = element / windows.run % windows.runs;
        tap = element / windows.run / windows.runs;
    }
};

inline long clamp(long value, long least, long most) { return value < least ? least : value > most ? most : value; }

// Writes `count` elements of a window, from a place on. source is that of the first channel.
template <class Stored, class Number>
inline void write_window(
    const Windows &windows, const Stored *source, const Position &at, Place place, long count, Number *out) {
    const Axis &y = windows.axes[0], &x = windows.axes[1];
    while (count) {
        long some = windows.run - place.within < count ? windows.run - place.within : count;
        long row = at.i * y.stride + y.offset + place.tap * y.step;
        long column = at.j * x.stride + x.offset + (windows.is_joined ? 0 : place.run * x.step);
        long from = place.within, to = place.within + some, least = 0, most = 0;  // least to most is in the image
        if (row >= 0 && row < y.source) {
            if (windows.is_joined) {
                least = clamp(-column, 0, x.taps) * windows.channels;
                most = clamp(x.source - column, 0, x.taps) * windows.channels;
            } else if (column >= 0 && column < x.source) {
                most = windows.run;
            }
        }
        least = clamp(least, from, to);
        most = clamp(most, least, to);
        if (least > from) zero_n(out, least - from);
        if (most > least) {
            long pixel = (at.image * y.source + row) * x.source + column;
            pack_n(source + pixel * windows.source_channels + least, out + (least - from), most - least);
        }
        if (to > most) zero_n(out + (most - from), to - most);
        out += some;
        count -= some;
        place.within = 0;
        if (++place.run == windows.runs) {
            place.run = 0;
            ++place.tap;
        }
    }
}

// Writes a whole window of three channels, and may write one number more: four are copied at a time, and the next three
// overwrite the last of them.
template <class Stored, class Number>
INLINE void write_window_of_image(const Windows &windows, const Stored *source, const Position &at, Number *out) {
    const Axis &y = windows.axes[0], &x = windows.axes[1];
    for (long i = 0; i < y.taps; ++i) {
        long row = at.i * y.stride + y.offset + i * y.step, column = at.j * x.stride + x.offset;
        bool is_inside = row >= 0 && row < y.source;
        long first = (at.image * y.source + (is_inside ? row : 0)) * x.source;
        const Stored *pixels = source + first * windows.source_channels;
        for (long j = 0; j < x.taps; ++j, column += x.step, out += 3) {
            if (is_inside && column >= 0 && column < x.source)
                pack_4(pixels + column * windows.source_channels, out);
            else
                out[0] = out[1] = out[2] = Number();
        }
    }
}

}  // namespace INSTRUCTIONS
}  // namespace native

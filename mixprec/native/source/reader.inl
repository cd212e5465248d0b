// How the windows of a convolution become rows of left matrices. Most are packed. Those of a filter that moves by one
// pixel are shifted views of one padded copy of the image: it has each number once, and packed windows have it for each
// element of the filter. Windows of one pixel are read in place where that is as quick.
#pragma once
#include <type_traits>

#include "windows.inl"

namespace native {
namespace INSTRUCTIONS {

constexpr long ROOM = 96 << 10;  // operands of a block: with a panel of filters they fit the second-level cache
constexpr long MOST_ROWS = 32 * ROWS;

// The windows of a task, in pieces of up to ROWS rows.
template <class Operand>
struct Pieces {
    struct Piece {
        const Operand *start;
        const long *pixels;  // of the target, one for each row; -1 for a row that is none
        long rows;
    };
    Piece all[MOST_ROWS];
    long pixels[2 * MOST_ROWS];
    long count = 0, used = 0;

    void add(const Operand *start, long rows) {
        all[count++] = {start, pixels + used, rows};
        used += rows;
    }
};

template <class Stored, class Operand>
class Reader {
  public:
    Reader(const Windows &windows, const Stored *source)
        : windows_(windows), source_(source), down_(windows.axes[0]), across_(windows.axes[1]) {
        const bool by_one = down_.stride == 1 && across_.stride == 1, is_full = windows.channels % (UNIT * EACH) == 0;
        reach_ = (down_.taps - 1) * down_.step;
        width_ = across_.positions + (across_.taps - 1) * across_.step;
        is_shifted_ = by_one && is_full && down_.taps * across_.taps > 1 && is_worth_it();
        // Vectors go along their rows together: far apart, these fall on the same lines of the first-level cache.
        const bool is_near = UNIT > 1 || windows.source_channels * sizeof(Stored) <= 1024;
        is_in_place_ = by_one && is_full && is_near && windows.is_pixel && std::is_same<Stored, Number>() &&
                       down_.positions == down_.source && across_.positions == across_.source &&
                       windows.source_channels % EACH == 0;
        left_.depth = operands<Operand>(is_shifted_ ? windows.channels : windows.depth());
        step_ = ((left_.depth + 15) / 16 | 1) * 16;  // an odd number of cache lines: rows do not fall on the same ones
        left_.step = is_in_place_ ? windows.source_channels / EACH : step_;
        if (!is_shifted_) return;
        left_.taps[0] = down_.taps, left_.distances[0] = down_.step * width_ * step_;
        left_.taps[1] = across_.taps, left_.distances[1] = across_.step * step_;
    }

    // The work is shared out by lines of an image, or by windows.
    long units() const { return is_shifted_ ? windows_.images * down_.positions : windows_.positions(); }
    long most_units() const {
        if (!is_shifted_) return clamp(ROOM / step_ / ROWS * ROWS, ROWS, MOST_ROWS);
        return clamp(ROOM / (step_ * width_) - reach_, 1, MOST_ROWS / across_.positions);
    }
    // Operands of memory for so many units. The kernel reads ROWS rows, also where fewer are left.
    long room(long units) const {
        if (!is_shifted_) return (units + ROWS) * step_;
        long images = (units - 1) / down_.positions + 2;  // at most
        return ((units + images * reach_) * width_ + ROWS) * step_;
    }

    Left<Operand> left(const Operand *start) const {
        Left<Operand> left = left_;
        left.start = start;
        return left;
    }

    // Reads units from `first` on.
    void read(long first, long count, Operand *room, Pieces<Operand> &out) const {
        if (!is_shifted_) return read_windows(first, count, room, out);
        for (long lines; count; first += lines, count -= lines) {
            long image = first / down_.positions, line = first % down_.positions;
            lines = clamp(down_.positions - line, 0, count);
            copy(image, line, lines + reach_, reinterpret_cast<Number *>(room));
            add_lines(image, line, lines, room, out);
            room += (lines + reach_) * width_ * step_;
        }
    }

  private:
    typedef typename Numbers<Operand>::Number Number;
    static constexpr int EACH = Numbers<Operand>::COUNT;
    static constexpr bool GOES_ON = UNIT > 1;  // a piece goes on in the next line, with the padding as rows in between

    // Positions of some lines that a piece may have, of which there are `runs`.
    long run(long lines) const { return GOES_ON ? (lines - 1) * width_ + across_.positions : across_.positions; }
    static long pieces(long run) { return (run + ROWS - 1) / ROWS; }

    // Whether few rows of the pieces are missing, or in the padding: a shorter piece of vectors takes less time.
    bool is_worth_it() const {
        if (across_.positions > MOST_ROWS) return false;
        if (!GOES_ON) return 2 * across_.positions > pieces(across_.positions) * ROWS;
        return 5 * down_.positions * across_.positions >= 4 * pieces(run(down_.positions)) * ROWS;
    }

    // Copies lines of an image as the filter sees them, with zeros for the padding.
    void copy(long image, long line, long lines, Number *out) const {
        const long step = step_ * EACH, channels = windows_.channels;
        const long begin = clamp(-across_.offset, 0, width_), end = clamp(across_.source - across_.offset, begin, width_);
        for (long i = line; i < line + lines; ++i) {
            long row = i + down_.offset, stop = row >= 0 && row < down_.source ? end : begin, j = 0;
            for (; j < begin; ++j, out += step) zero_n(out, channels);
            const Stored *from = source_ + ((image * down_.source + row) * across_.source + j + across_.offset) *
                                               windows_.source_channels;
            for (; j < stop; ++j, out += step, from += windows_.source_channels) pack_n(from, out, channels);
            for (; j < width_; ++j, out += step) zero_n(out, channels);
        }
    }

    void add_lines(long image, long line, long lines, const Operand *room, Pieces<Operand> &out) const {
        const long run = this->run(lines), parts = pieces(run);
        for (long k = 0; k < (GOES_ON ? 1 : lines); ++k)
            for (long part = 0; part < parts; ++part) {
                long start = k * width_ + run * part / parts, stop = k * width_ + run * (part + 1) / parts;
                for (long at = start; at < stop; ++at) {
                    long j = at % width_;
                    out.pixels[out.used + at - start] =
                        j < across_.positions ? windows_.target(image, line + at / width_, j) : -1;
                }
                out.add(room + start * step_, stop - start);
            }
    }

    void read_windows(long first, long count, Operand *room, Pieces<Operand> &out) const {
        const Windows windows = windows_;  // on the stack, which what is written cannot change
        const long numbers = windows.depth(), all = windows.positions(), step = left_.step, end = left_.depth * EACH;
        Position at(windows, first);
        for (long i = 0; i < count; i += ROWS) {
            long rows = clamp(count - i, 0, ROWS);
            bool is_in_place = is_in_place_ && first + i + ROWS <= all;  // the kernel would read beyond the end
            const auto *in_place = reinterpret_cast<const Operand *>(source_) + (first + i) * step;
            for (long k = 0; k < rows; ++k, at.next(windows)) {
                out.pixels[out.used + k] = windows.target(at.image, at.i, at.j);
                if (is_in_place || !numbers) continue;
                auto *row = reinterpret_cast<Number *>(room + k * step);
                if (windows_.is_image) write_window_of_image(windows, source_, at, row);
                else write_window(windows, source_, at, Place(windows, 0), numbers, row);
                zero_n(row + numbers, end - numbers);
            }
            out.add(is_in_place ? in_place : room, rows);
            if (!is_in_place) room += rows * step;
        }
    }

    const Windows &windows_;
    const Stored *source_;
    const Axis &down_, &across_;
    long reach_, width_, step_;  // further lines that the filter sees; pixels of a line of the copy; operands of one
    bool is_shifted_, is_in_place_;
    Left<Operand> left_ = {};
};

}  // namespace INSTRUCTIONS
}  // namespace native

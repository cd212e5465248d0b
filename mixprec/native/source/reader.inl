// How the windows of a convolution become rows of left matrices. Most are packed. Those of a filter that moves by one
// pixel are shifted views of one padded copy of the image: it has each number once, and packed windows have it for each
// element of the filter. Windows of one pixel are read in place where that is as quick.
#pragma once
#include <type_traits>

#include "windows.inl"

namespace native {
namespace INSTRUCTIONS {

constexpr long MOST_ROWS = 32 * ROWS;
constexpr long PART = 1152;  // operands of deep windows, which are read in parts: few of them would fit the cache

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
        is_shifted_ = by_one && is_full && is_worth_it(step_of(windows.channels / EACH));
        // Vectors go along their rows together: far apart, these fall on the same lines of the first-level cache.
        const bool is_near = UNIT > 1 || windows.source_channels * sizeof(Stored) <= 1024;
        is_in_place_ = by_one && is_full && is_near && windows.is_pixel && std::is_same<Stored, Number>() &&
                       down_.positions == down_.source && across_.positions == across_.source &&
                       windows.source_channels % EACH == 0;
        part_ = depth_ >= 2 * PART && !is_shifted_ && !is_in_place_ && !windows.is_image ? PART : depth_;
        step_ = is_in_place_ ? windows.source_channels / EACH : step_of(is_shifted_ ? windows.channels / EACH : part_);
    }

    // The work is shared out by lines of an image, or by windows.
    long units() const { return is_shifted_ ? windows_.images * down_.positions : windows_.positions(); }
    long most_units() const {
        return is_shifted_ ? most_lines(step_) : clamp(ROOM / step_of(part_) / ROWS * ROWS, ROWS, MOST_ROWS);
    }
    // Operands of memory for so many units. The kernel may read ROWS rows, also where fewer are left; in place only
    // such a piece needs memory.
    long memory(long units) const {
        if (!is_shifted_) return (is_in_place_ ? ROWS : units + ROWS) * step_;
        long images = (units - 1) / down_.positions + 2;  // at most
        return ((units + images * reach_) * width_ + ROWS) * step_;
    }

    // Deep windows are read in parts.
    long parts() const { return part_ ? (depth_ + part_ - 1) / part_ : 1; }
    long start_of(long part) const { return part * part_; }

    Left<Operand> left(const Operand *start, long part) const {
        if (!is_shifted_) return {start, step_, clamp(depth_ - start_of(part), 0, part_)};
        return {start, step_, windows_.channels / EACH, {down_.taps, across_.taps},
                {down_.step * width_ * step_, across_.step * step_}};
    }

    // Reads a part of units from `first` on.
    void read(long first, long count, long part, Operand *memory, Pieces<Operand> &out) const {
        if (!is_shifted_) return read_windows(first, count, part, memory, out);
        for (long lines; count; first += lines, count -= lines) {
            long image = first / down_.positions, line = first % down_.positions;
            lines = clamp(down_.positions - line, 0, count);
            copy(image, line, lines + reach_, reinterpret_cast<Number *>(memory));
            add_lines(image, line, lines, memory, out);
            memory += (lines + reach_) * width_ * step_;
        }
    }

  private:
    typedef typename Numbers<Operand>::Number Number;
    static constexpr int EACH = Numbers<Operand>::COUNT;
    static constexpr bool GOES_ON = UNIT > 1;  // a piece goes on in the next line, with the padding as rows in between

    // Positions that are cut into pieces: of one line, or of all lines with the padding in between.
    long run(long lines) const { return GOES_ON ? (lines - 1) * width_ + across_.positions : across_.positions; }
    static long pieces(long run) { return (run + ROWS - 1) / ROWS; }

    // Operands from row to row: an odd number of cache lines, so that rows do not fall on the same ones.
    static long step_of(long depth) { return ((depth + 15) / 16 | 1) * 16; }
    long most_lines(long step) const {
        return clamp(ROOM / (step * width_) - reach_, 1, MOST_ROWS / across_.positions);
    }

    // Whether less is copied than windows have, and few rows of the pieces are missing or padding.
    bool is_worth_it(long step) const {
        const long taps = down_.taps * across_.taps, positions = across_.positions;
        if (taps < 2 || positions > MOST_ROWS) return false;
        const long lines = most_lines(step);
        if ((lines + reach_) * width_ > lines * positions * taps) return false;
        if (!GOES_ON) return 2 * positions > pieces(positions) * ROWS;
        return 5 * down_.positions * positions >= 4 * pieces(run(down_.positions)) * ROWS;
    }

    // Copies lines of an image as the filter sees them, with zeros for the padding.
    void copy(long image, long line, long lines, Number *out) const {
        const long step = step_ * EACH, channels = windows_.channels;
        const long begin = clamp(-across_.offset, 0, width_);
        const long end = clamp(across_.source - across_.offset, begin, width_);
        for (long i = line; i < line + lines; ++i) {
            long row = i + down_.offset, stop = row >= 0 && row < down_.source ? end : begin, j = 0;
            for (; j < begin; ++j, out += step) zero_n(out, channels);
            const Stored *from = source_ + ((image * down_.source + row) * across_.source + j + across_.offset) *
                                               windows_.source_channels;
            for (; j < stop; ++j, out += step, from += windows_.source_channels) pack_n(from, out, channels);
            for (; j < width_; ++j, out += step) zero_n(out, channels);
        }
    }

    void add_lines(long image, long line, long lines, const Operand *memory, Pieces<Operand> &out) const {
        const long run = this->run(lines), count = pieces(run);
        for (long k = 0; k < (GOES_ON ? 1 : lines); ++k)
            for (long i = 0; i < count; ++i) {
                long start = k * width_ + run * i / count, stop = k * width_ + run * (i + 1) / count;
                for (long at = start; at < stop; ++at) {
                    long j = at % width_;
                    out.pixels[out.used + at - start] =
                        j < across_.positions ? windows_.target(image, line + at / width_, j) : -1;
                }
                out.add(memory + start * step_, stop - start);
            }
    }

    void read_windows(long first, long count, long part, Operand *memory, Pieces<Operand> &out) const {
        const Windows windows = windows_;  // a local copy: the compiler knows that stores do not change it
        const long numbers = clamp(windows.depth() - start_of(part) * EACH, 0, part_ * EACH), all = windows.positions();
        const long step = step_, end = left(memory, part).depth * EACH;
        Position at(windows, first);
        for (long i = 0; i < count; i += ROWS) {
            long rows = clamp(count - i, 0, ROWS);
            bool is_in_place = is_in_place_ && first + i + ROWS <= all;  // the kernel would read beyond the end
            for (long k = 0; k < rows; ++k, at.next(windows)) {
                out.pixels[out.used + k] = windows.target(at.image, at.i, at.j);
                if (is_in_place || !numbers) continue;
                auto *row = reinterpret_cast<Number *>(memory + k * step);
                if (windows.is_image) write_window_of_image(windows, source_, at, row);
                else write_window(windows, source_, at, Place(windows, start_of(part) * EACH), numbers, row);
                zero_n(row + numbers, end - numbers);
            }
            out.add(is_in_place ? reinterpret_cast<const Operand *>(source_) + (first + i) * step : memory, rows);
            if (!is_in_place) memory += rows * step;
        }
    }

    const Windows &windows_;
    const Stored *source_;
    const Axis &down_, &across_;
    const long depth_ = operands<Operand>(windows_.depth());
    long part_, step_;     // operands: of a part of a window, and from row to row
    long reach_, width_;   // lines that the filter sees beside its first; pixels of a line of the copy
    bool is_shifted_, is_in_place_;
};

}  // namespace INSTRUCTIONS
}  // namespace native

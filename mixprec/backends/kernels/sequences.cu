// Rows of many arrays in one, and back. What is in that one consists of pieces: an array after the other; or for packed
// sequences a step after the other, with a row of each array that has not ended.
//
// The table is an argument by value, as a CUDA graph uploads nothing.

struct Pieces {
    u64 addresses[256];  // of arrays
    u32 firsts[482];     // the first row of each piece, and the end of the last; arguments have 4,096 bytes
};

// A row has `vectors` of WIDTH elements. For packed sequences the table has `arrays` of them from `first` on.
extern "C" __global__ void __launch_bounds__(THREADS) copy_rows(
    const Pieces pieces, long long count, u64 whole, long long vectors, long long by_step, long long first,
    long long arrays, long long back) {
    const long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    const long long row = pieces.firsts[0] + i / vectors;
    if (row >= pieces.firsts[count]) return;
    int piece = 0;
    for (int step = 256; step; step /= 2) {
        if (piece + step < count && pieces.firsts[piece + step] <= row) piece += step;
    }
    const long long inner = row - pieces.firsts[piece], array = by_step ? inner - first : piece;
    if (array < 0 || array >= arrays) return;
    constexpr int BYTES = WIDTH * SIZE<STORAGE>;
    const u64 there = pieces.addresses[array] + ((by_step ? piece : inner) * vectors + i % vectors) * BYTES;
    const u64 here = whole + (row * vectors + i % vectors) * BYTES;
    u32 words[BYTES / 4 ? BYTES / 4 : 1];
    load_words<BYTES / 4>(back ? here : there, words);
    store_words<BYTES / 4>(back ? there : here, words);
}

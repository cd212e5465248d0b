// Copies of many arrays of any type in one launch: a block for each piece.

struct Piece {
    u64 from, to;  // addresses
    long long bytes;
};

template <typename Word>
__device__ __forceinline__ void copy_piece(const Piece& piece) {
    const Word* const from = reinterpret_cast<const Word*>(piece.from);
    Word* const to = reinterpret_cast<Word*>(piece.to);
#pragma unroll 1
    for (long long i = threadIdx.x; i < piece.bytes / static_cast<long long>(sizeof(Word)); i += THREADS) to[i] = from[i];
}

extern "C" __global__ void __launch_bounds__(THREADS) save(const Piece* pieces) {
    const Piece piece = pieces[blockIdx.x];
    if ((piece.from | piece.to | piece.bytes) % sizeof(u32) == 0) {
        copy_piece<u32>(piece);
    } else {
        copy_piece<u8>(piece);
    }
}

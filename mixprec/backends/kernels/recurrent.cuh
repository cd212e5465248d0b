// What the kernels of recurrent layers share. A thread has a unit of a sequence in one step. An array that is not there
// has the address 0, and zeros for elements.

enum Kind { LSTM, GRU, GRU_RESET_BEFORE, TANH, RELU };

template <int D = STORAGE>
__device__ __forceinline__ float element(u64 address, long long i) {
    float x[1] = {0.0f};
    if (address) load<D>(address, i, x);
    return x[0];
}

template <int D = STORAGE>
__device__ __forceinline__ void set_element(u64 address, long long i, float value) {
    const float x[1] = {value};
    store<D>(address, i, x);
}

// The gates of a row: input, forget, candidate and output of an LSTM, else reset, update and candidate of a GRU.
struct Gates {
    long long kind, units, count;
    long long interleaved;  // an LSTM's gates of a unit are neighbours: candidate, input, forget, output

    __device__ __forceinline__ long long at(int gate, int unit) const {
        return interleaved ? unit * 4ll + (gate == 3 ? 3 : (gate + 1) % 3) : gate * units + unit;
    }
};

// The sequence and the unit of a thread.
struct Place {
    long long row;
    int unit;

    __device__ __forceinline__ explicit Place(u32 units) {
        const u32 i = blockIdx.x * THREADS + threadIdx.x;
        row = i / units;
        unit = i % units;
    }
};

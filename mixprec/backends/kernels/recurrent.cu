// A step of a recurrent layer, after the products of its states, see recurrent.cuh. Biases are in OTHER.
#include "recurrent.cuh"

struct Step {
    long long first, count;  // rows of this step in the packed arrays
    long long next, after;   // of the following one
    long long rows;          // what there is to do: sequences of either step, before the first step all
    u64 of_h;                // terms of the states (count, gates), float32
    Gates gates;
    u64 of_x, of_x_bias, of_h_bias;               // terms of the inputs (rows, gates), float32
    u64 y, saved, states, cells, reset;           // packed
    u64 first_h, first_c, last_h, last_c;         // of all sequences

    __device__ __forceinline__ float input(const Place& place, int gate) const {
        const long long i = gates.at(gate, place.unit);
        return element<FLOAT32>(of_x, (first + place.row) * gates.count * gates.units + i) +
               element<OTHER>(of_x_bias, i);
    }

    __device__ __forceinline__ float state_term(const Place& place, int gate) const {
        const long long i = gates.at(gate, place.unit);
        return element<FLOAT32>(of_h, place.row * gates.count * gates.units + i) + element<OTHER>(of_h_bias, i);
    }

    __device__ __forceinline__ float sum(const Place& place, int gate) const {
        return input(place, gate) + state_term(place, gate);
    }

    __device__ __forceinline__ void save(const Place& place, int gate, int number, float value) const {
        set_element(saved, (first + place.row) * number * gates.units + gates.at(gate, place.unit), value);
    }
};

__device__ __forceinline__ float sigmoid(float x) { return tanhf(x * 0.5f) * 0.5f + 0.5f; }

// Returns the state after a step from the one before; c as well.
__device__ __forceinline__ float advanced(const Step& step, const Place& place, float h, float& c) {
    if (step.gates.kind == LSTM) {
        const float i = sigmoid(step.sum(place, 0)), f = sigmoid(step.sum(place, 1));
        const float a = tanhf(step.sum(place, 2)), o = sigmoid(step.sum(place, 3));
        step.save(place, 0, 4, i);
        step.save(place, 1, 4, f);
        step.save(place, 2, 4, a);
        step.save(place, 3, 4, o);
        c = f * c + i * a;
        return o * tanhf(c);
    }
    if (step.gates.kind == GRU) {
        const float r = sigmoid(step.sum(place, 0)), z = sigmoid(step.sum(place, 1));
        const float term = step.state_term(place, 2), a = tanhf(step.input(place, 2) + r * term);
        step.save(place, 0, 4, r);
        step.save(place, 1, 4, z);
        step.save(place, 2, 4, a);
        step.save(place, 3, 4, term);
        return a + z * (h - a);
    }
    if (step.gates.kind == GRU_RESET_BEFORE) {
        const float z = sigmoid(step.sum(place, 1)), a = tanhf(step.sum(place, 2));
        step.save(place, 1, 3, z);
        step.save(place, 2, 3, a);
        return h + z * (a - h);
    }
    const float value = step.sum(place, 0);
    if (step.gates.kind == TANH) return tanhf(value);
    return value > 0 || value != value ? value : 0.0f;
}

extern "C" __global__ void __launch_bounds__(THREADS) recurrent_forward(const Step step) {
    const long long units = step.gates.units;
    const Place place(units);
    if (place.row >= step.rows) return;
    const long long own = place.row * units + place.unit, here = step.first * units + own;
    const bool runs = place.row < step.count, goes_on = place.row < step.after, is_lstm = step.gates.kind == LSTM;
    float h, c = 0.0f;
    if (runs) {
        h = element(step.states, here);
        if (is_lstm) c = step.cells ? element<FLOAT32>(step.cells, here) : element(step.first_c, own);
        h = advanced(step, place, h, c);
        set_element(step.y, here, h);
    } else {  // a sequence that begins with the following step, or is empty
        h = element(step.first_h, own);
        c = element(step.first_c, own);
    }
    const long long there = step.next * units + own;
    if (goes_on) {
        set_element(step.states, there, h);
        if (is_lstm) set_element<FLOAT32>(step.cells, there, c);
    } else {
        set_element(step.last_h, own, h);
        if (is_lstm) set_element(step.last_c, own, c);
    }
}

// The first part of a step with GRU_RESET_BEFORE: what the products for the candidate need.
extern "C" __global__ void __launch_bounds__(THREADS) recurrent_reset(const Step step) {
    const long long units = step.gates.units;
    const Place place(units);
    if (place.row >= step.count) return;
    const long long here = (step.first + place.row) * units + place.unit;
    const float r = sigmoid(step.sum(place, 0));
    step.save(place, 0, 3, r);
    set_element(step.reset, here, r * element(step.states, here));
}

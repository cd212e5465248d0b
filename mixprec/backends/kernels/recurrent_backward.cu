// The gradients of a step of a recurrent layer, before the product for the gradients of its states, see recurrent.cuh.
#include "recurrent.cuh"

struct Step {
    long long first, count;  // rows of this step in the packed arrays
    long long after;         // rows of the following step, whose gradients are there
    Gates gates;
    u64 dy, y, saved, states, cells;      // packed
    u64 last_dh, last_dc;                 // gradients of the last states
    u64 of_x, of_h;                       // gradients of the terms of inputs and states; of a GRU there are two
    u64 dh, dc;                           // gradients of the states of all sequences, float32
    u64 of_reset;                         // gradients of states times the reset gate (count, units), float32
    u64 first_c, first_dc;                // of a single step, instead of cells and dc, in STORAGE

    __device__ __forceinline__ long long at(const Place& place, int gate, int number) const {
        return (first + place.row) * number * gates.units + gates.at(gate, place.unit);
    }

    __device__ __forceinline__ float gate(const Place& place, int gate, int number) const {
        return element(saved, at(place, gate, number));
    }

    __device__ __forceinline__ void set(const Place& place, int gate, float gradient) const {
        set_element(of_x, at(place, gate, gates.count), gradient);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS) recurrent_backward(const Step step) {
    const long long units = step.gates.units;
    const Place place(units);
    if (place.row >= step.count) return;
    const long long own = place.row * units + place.unit, here = step.first * units + own;
    const bool goes_on = place.row < step.after;
    float dh = goes_on ? element<FLOAT32>(step.dh, own) : element(step.last_dh, own);
    dh += element(step.dy, here);
    if (step.gates.kind == LSTM) {
        const float i = step.gate(place, 0, 4), f = step.gate(place, 1, 4);
        const float a = step.gate(place, 2, 4), o = step.gate(place, 3, 4);
        const float c = step.cells ? element<FLOAT32>(step.cells, here) : element(step.first_c, own);
        const float out = tanhf(f * c + i * a);
        float dc = goes_on ? element<FLOAT32>(step.dc, own) : element(step.last_dc, own);
        dc += dh * (o * (1 - out * out));
        step.set(place, 0, dc * (a * i * (1 - i)));
        step.set(place, 1, dc * (c * f * (1 - f)));
        step.set(place, 2, dc * (i * (1 - a * a)));
        step.set(place, 3, dh * (out * o * (1 - o)));
        if (step.dc) {
            set_element<FLOAT32>(step.dc, own, dc * f);
        } else {
            set_element(step.first_dc, own, dc * f);
        }
    } else if (step.gates.kind == GRU) {
        const float r = step.gate(place, 0, 4), z = step.gate(place, 1, 4);
        const float a = step.gate(place, 2, 4), term = step.gate(place, 3, 4);
        const float of_a = dh * ((1 - z) * (1 - a * a));
        const float of_r = of_a * (term * r * (1 - r));
        const float of_z = dh * ((element(step.states, here) - a) * z * (1 - z));
        step.set(place, 0, of_r);
        step.set(place, 1, of_z);
        step.set(place, 2, of_a);
        set_element(step.of_h, step.at(place, 0, 3), of_r);
        set_element(step.of_h, step.at(place, 1, 3), of_z);
        set_element(step.of_h, step.at(place, 2, 3), of_a * r);
        set_element<FLOAT32>(step.dh, own, dh * z);
    } else if (step.gates.kind == GRU_RESET_BEFORE) {
        const float z = step.gate(place, 1, 3), a = step.gate(place, 2, 3);
        step.set(place, 1, dh * ((a - element(step.states, here)) * z * (1 - z)));
        step.set(place, 2, dh * (z * (1 - a * a)));
        set_element<FLOAT32>(step.dh, own, dh * (1 - z));
    } else {
        const float y = element(step.y, here);
        step.set(place, 0, step.gates.kind == TANH ? dh * (1 - y * y) : y > 0 ? dh : 0.0f);
    }
}

// The second part with GRU_RESET_BEFORE, after the product for the gradients of what the candidate has from the states.
extern "C" __global__ void __launch_bounds__(THREADS) recurrent_reset_backward(const Step step) {
    const long long units = step.gates.units;
    const Place place(units);
    if (place.row >= step.count) return;
    const long long own = place.row * units + place.unit, here = step.first * units + own;
    const float r = step.gate(place, 0, 3), gradient = element<FLOAT32>(step.of_reset, own);
    step.set(place, 0, gradient * (element(step.states, here) * r * (1 - r)));
    set_element<FLOAT32>(step.dh, own, element<FLOAT32>(step.dh, own) + gradient * r);
}

// Gradients of the first states, of all sequences; of an empty one these are the last ones.
extern "C" __global__ void __launch_bounds__(THREADS) recurrent_states_backward(
    const Step step, u64 first_dh, u64 first_dc) {
    const long long units = step.gates.units;
    const Place place(units);
    if (place.row >= step.count) return;
    const long long own = place.row * units + place.unit;
    const bool has_run = place.row < step.after;
    set_element(first_dh, own, has_run ? element<FLOAT32>(step.dh, own) : element(step.last_dh, own));
    if (step.gates.kind == LSTM) {
        set_element(first_dc, own, has_run ? element<FLOAT32>(step.dc, own) : element(step.last_dc, own));
    }
}

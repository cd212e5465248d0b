// Keeps the device busy while the host asks for what is timed: otherwise short kernels would wait for the host, and all
// of them would seem to take as long as a launch.
extern "C" __global__ void spin(long long cycles) {
    const long long start = clock64();
    while (clock64() - start < cycles) {}
}

"""Whether a batch normalization that reads its input once is worth building: two questions to a GPU.

python -m benchmarks.gpu_check.segments

How fast is a copy that takes rows in pieces of 32 to 256 bytes, all first pieces first, as slices of channels of NHWC
arrays are taken? Does a graph keep a cooperative launch with a barrier of all blocks, one on each multiprocessor with
nearly all of its shared memory, and what does that barrier take?
"""

import pathlib
import sys

from mixprec.app.commands import command_process

if __name__ == "__main__":
    command_process.begin()

import numpy as np

from benchmarks import gpu

ROW = 1024  # bytes: 512 channels in 16 bits
PIECES = (256, 128, 64, 32)
_ROWS = 256 * 28 * 28
_BLOCKS = 8  # on a multiprocessor
_VECTOR = 16  # bytes of an access
_SHARED = 195 << 10  # bytes, as that kernel would have
_LAUNCHES = 5


def source(threads):
    """Returns the CUDA source for so many threads in a block."""
    return f"#define THREADS {threads}\n{pathlib.Path(__file__).with_name('segments.cu').read_text('utf-8')}"


def copies(launcher, array, blocks, seconds, receive):
    """Copies an array, uint8 (rows, ROW), in pieces of each width; returns lines with rates relative to whole rows.

    ``seconds`` returns how long a callable takes on the device, ``receive`` an array of the device as one of NumPy.
    """
    kernel = launcher.compile(source(launcher.threads), ("copy_slices",))["copy_slices"]
    found, expected, target = {}, receive(array), launcher.empty(array.shape, array.dtype)
    for piece in (ROW, *PIECES):
        launcher.zero(target)
        places = [launcher.address(array), launcher.address(target), len(array), ROW // _VECTOR, piece // _VECTOR]
        found[piece] = seconds(lambda places=places: launcher.launch(kernel, blocks, places))
        if not np.array_equal(receive(target), expected):  # by the host: CuPy would compile a reduction
            raise AssertionError(f"a copy in pieces of {piece} bytes is wrong")
    rate = 2 * array.nbytes / found[ROW] / 1e12
    lines = [f"a copy of {array.nbytes >> 20} MiB in whole rows of {ROW} bytes: {rate:.2f} TB/s"]
    return [*lines, *(f"in pieces of {piece} bytes: {found[ROW] / found[piece]:.3f} of that rate" for piece in PIECES)]


def cooperative(launcher, cupy, graphs, seconds):
    """Captures a cooperative launch and launches the graph: each block has to see all others; returns a line."""
    blocks = cupy.cuda.Device().attributes["MultiProcessorCount"]
    function = launcher.compile(source(launcher.threads), ("meet",))["meet"].function
    driver = cupy.cuda.driver
    driver.funcSetAttribute(function.ptr, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, _SHARED)
    numbers, sums, arrived = (cupy.zeros(size, np.uint32) for size in (blocks, blocks, 1))
    places = tuple(np.int64(array.data.ptr) for array in (numbers, sums, arrived))

    def meet():
        function((blocks,), (launcher.threads,), places, _SHARED, None, True)  # True: a cooperative launch

    meet()
    with graphs.on_stream():
        graph, _ = graphs.capture(meet)
        for number in range(2, 2 + _LAUNCHES):
            graph.launch()
            if set(sums.get()) != {number * blocks}:
                raise AssertionError(f"launch {number - 1}: sums {sums.get()}, expected {number * blocks}")
    taken = seconds(graph.launch) * 1e6
    return f"{_LAUNCHES} launches of a graph with a barrier of {blocks} blocks are right; one takes {taken:.1f} us"


def main():
    """Asks the first GPU; returns the exit status: 1 if a result is wrong."""
    import chainer
    import cupy

    from mixprec.backends import launcher_of
    from mixprec.graph_capture.cuda_graphs import graphs_of

    device = chainer.get_device("@cupy:0")
    device.use()

    def seconds(step):
        step()
        return gpu.seconds(device, step)

    array = device.send(np.random.default_rng(0).integers(0, 256, (_ROWS, ROW), dtype=np.uint8))
    launcher = launcher_of(array)
    blocks = _BLOCKS * cupy.cuda.Device().attributes["MultiProcessorCount"]
    try:
        for line in copies(launcher, array, blocks, seconds, cupy.asnumpy):
            print(line, flush=True)
        print(cooperative(launcher, cupy, graphs_of(array), seconds))
    except AssertionError as error:
        print(f"wrong: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(command_process.run(main))

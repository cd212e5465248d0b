"""The properties of a GPU that cuDNN asks for, as the file from which it builds plans for that GPU where there is none.

python -m benchmarks.gpu_check.properties FILE
"""

import sys

from mixprec import files

NAME = "device.json"


def main(path):
    """Writes the properties of the first GPU as cuDNN serializes them: JSON with one name a line.

    Raises:
        CudnnMissing: cuDNN or its frontend is not installed.
        RuntimeError: cuDNN cannot ask the GPU, or does not take back what it has written.
    """
    from mixprec.backends.cudnn import library  # imports CuPy, which the process of all stages must not

    cudnn = library.load()
    text = cudnn.create_device_properties(0).serialize()
    if cudnn.create_device_properties(text).serialize() != text:
        raise RuntimeError("cuDNN reads other properties from the file than it has written")
    files.write_text(path, text)
    print(text)


if __name__ == "__main__":
    main(*sys.argv[1:])

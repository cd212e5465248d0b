"""A Chainer iterator that decodes by Pillow in separate processes, for machines without DALI."""

import collections
import contextlib
import math
import mmap
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import weakref

import numpy as np
import PIL

from mixprec.base.messages import reworded
from mixprec.data.data_error import DataError
from mixprec.data.loaders.iterator import ImageIterator
from mixprec.data.loaders.pillow_worker import Work

_COMMAND = """\
import sys
sys.path[:] = {path}
from mixprec.data.loaders import pillow_worker
pillow_worker.main({work}, {memory})
"""


class PillowIterator(ImageIterator):
    """Batches of decoded, augmented and normalized images, by Pillow on the CPU; see :class:`ImageIterator`.

    The arguments are the same as for :class:`~mixprec.data.loaders.dali.DaliIterator` on a CPU, and decoded pixels are
    the same. Rounding differs, and the border of resized crops (DALI repeats the last pixel, Pillow ignores pixels
    beyond it). Random numbers differ, too: a seed gives other crops and another order.

    ``threads`` is the number of processes, at most one for each image of a batch. They inherit nothing, do not run the
    user's script again, leave Ctrl-C and SIGTERM to the trainer, and always end with it. The images of an epoch are
    shuffled as a whole for any source; ``shuffle_window`` is ignored.

    Raises:
        DataError: As for :class:`ImageIterator`; also if a process is killed. The next ``next()`` starts new ones.

    Example:
        >>> from mixprec.data import BatchSpec, Crop, Delivery, PillowIterator, open_images
        >>> images = open_images("data/digits/train")  # doctest: +SKIP
        >>> spec = BatchSpec(batch_size=64, train=True, crop=Crop(size=32), seed=0)
        >>> iterator = PillowIterator(images, spec, Delivery(dtype="float32"))  # doctest: +SKIP
        >>> x, t = iterator.next()  # doctest: +SKIP
    """

    _workers = None
    _ahead = ()  # number of each batch that is being made, and indices of its images

    def __getstate__(self):
        """Copies continue from the same position, with their own processes."""
        return {**vars(self), "_workers": None, "_ahead": ()}

    def finalize(self):
        """Ends the processes. The position is kept: a later ``next()`` or ``serialize()`` continues from it."""
        if self._workers is not None:
            self._workers.stop()
            self._workers = None
            self._ahead = ()

    _restart = finalize  # they hold only batches made ahead

    def _loader_settings(self):
        return {"loader": f"Pillow {PIL.__version__}"}

    def _make(self, number):
        try:
            if self._ahead and self._ahead[0][0] != number:  # Ctrl-C has come when the one before was made, but not out
                self.finalize()
            if self._workers is None:
                # Each image of a batch is made by one process: more of them would have nothing to do.
                self._workers = _Workers(self._work(), min(self._delivery.threads, self.batch_size))
                self._ahead = collections.deque()
            last = number + self._delivery.prefetch
            if not self.repeat:  # the next pass is not made before it is requested
                last = min(last, self._epochs.batches - 1)
            for ahead in range(number + len(self._ahead), last + 1):
                epoch, indices = self._order.indices(ahead)
                self._ahead.append((ahead, indices))
                self._workers.begin(epoch, self._order.positions(ahead)[1], indices)
            x = self._workers.end()
            _, indices = self._ahead.popleft()
            return x, self._images.labels[indices]
        except BaseException:  # Ctrl-C, too: it may have come in the middle of an answer
            self.finalize()
            raise

    def _work(self):
        channels, dtype = 4 if self._delivery.pad_channels else 3, self._delivery.dtype
        size = self.batch_size * self._spec.crop.size**2 * channels * np.dtype(dtype).itemsize
        stride = -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        return Work(self._images, self._spec, dtype, channels, stride)


class _Workers:
    """The processes, and the memory that they share with this one, which holds several batches."""

    def __init__(self, work, count):
        self._work = work
        self._making = collections.deque()  # (slot, images, processes) of each batch
        self._slots = []  # mmaps
        self._lent = []  # (reference, slot): slots that were handed out, each free again when its array is gone
        processes = []
        memory, pickled = _unnamed_file("batches"), _unnamed_file("work")
        # Called once: by stop(), when this object becomes unused, or at the end of the interpreter.
        self.stop = weakref.finalize(self, _stop, processes, memory, os.getpid())
        self._memory, self._processes = memory, processes
        with pickled:
            pickle.dump(work, pickled)
            pickled.flush()
            files = memory.fileno(), pickled.fileno()
            code = _COMMAND.format(path=[*map(str, sys.path)], work=files[1], memory=files[0])
            # One thread each for NumPy's libraries: unused threads of many processes cost memory.
            environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
            with reworded(lambda reason: DataError(f"threads {count}: cannot start so many processes ({reason})")):
                for _ in range(count):
                    processes.append(
                        subprocess.Popen(
                            [sys.executable, "-c", code],
                            stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE,
                            pass_fds=files,
                            env=environment,
                            start_new_session=True,  # Ctrl-C is for the trainer
                        )
                    )

    def begin(self, epoch, positions, indices):
        """Gives each process its share of a batch."""
        slot = self._free_slot()
        shares = [share for share in np.array_split(np.arange(len(indices)), len(self._processes)) if len(share)]
        for process, share in zip(self._processes, shares, strict=False):
            try:
                images = list(zip(indices[share].tolist(), positions[share].tolist(), strict=True))
                pickle.dump((slot, int(share[0]), epoch, images), process.stdin)
                process.stdin.flush()
            except BrokenPipeError:
                raise DataError(_ended(process)) from None
        self._making.append((slot, len(indices), len(shares)))

    def end(self):
        """Waits for the batch that was begun first, and returns its images."""
        slot, images, shares = self._making.popleft()
        for process in self._processes[:shares]:  # with several bad images, the first one of the batch is named
            try:
                problem = pickle.load(process.stdout)
            except (EOFError, pickle.UnpicklingError):
                raise DataError(_ended(process)) from None
            if problem is not None:
                raise DataError(problem)
        shape = self._work.shape(images)
        array = np.frombuffer(self._slots[slot], self._work.dtype, math.prod(shape))
        # All views hold the array: its memory can be reused when the last one is gone. This is polled, as a Ctrl-C
        # during a callback would be lost.
        self._lent.append((weakref.ref(array), slot))
        return array.reshape(shape)

    def _free_slot(self):
        for index, (array, slot) in enumerate(self._lent):
            if array() is None:
                del self._lent[index]
                return slot
        slot, stride = len(self._slots), self._work.stride
        with reworded(lambda reason: DataError(f"no shared memory for a batch of {stride >> 20} MiB ({reason})")):
            # Allocated now, with an error: memory that is missing when it is written ends a process by SIGBUS.
            os.posix_fallocate(self._memory.fileno(), slot * stride, stride)
            self._slots.append(mmap.mmap(self._memory.fileno(), stride, offset=slot * stride))
        return slot


def _unnamed_file(name):
    """A file in memory that disappears with the last process that has it open, even by SIGKILL."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create(f"mixprec-{name}"), "w+b")
    return tempfile.TemporaryFile(dir="/dev/shm")  # Pythons that are built for old systems


def _ended(process):
    """The message for a process that has ended too early."""
    status = process.wait()
    how = f"by {signal.Signals(-status).name}" if status < 0 else f"with exit status {status}"
    return f"the Pillow loader's process {process.pid} has ended {how}"


def _stop(processes, memory, owner):
    for process in processes:
        if os.getpid() == owner:
            process.kill()  # it has nothing to lose
        else:
            process.returncode = 0  # a fork, at its end: it is not its child, and goes on
    for process in processes:
        process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.wait()
    memory.close()

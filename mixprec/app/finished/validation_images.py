"""Images as a network sees them in validation, one process and any source."""

import concurrent.futures
import warnings

import numpy as np

from mixprec.base.files import open_regular
from mixprec.data.data_error import DataError, printable
from mixprec.data.loaders.pillow_worker import Work
from mixprec.data.loaders.spec import BatchSpec, Crop, Normalization


class ValidationImages:
    """Images of a source, resized and cropped at the centre as in validation, by Pillow.

    Args:
        source: from :func:`mixprec.data.sources.opening.open_images`, or :class:`Files`.
        preprocessing: :class:`mixprec.export.preprocessing.Preprocessing`.
        indices: indices of the images, an array of integers.
        threads: number of threads that decode.
    """

    def __init__(self, source, preprocessing, indices, threads=1):
        spec = BatchSpec(
            batch_size=1,
            train=False,
            crop=Crop(size=preprocessing.size, resize=preprocessing.resize),
            normalization=Normalization(mean=preprocessing.mean, std=preprocessing.std),
            seed=0,
        )
        self._work = Work(source, spec, "float32", 3, 0)
        self._source, self._indices, self._threads = source, np.asarray(indices), threads

    def __len__(self):
        return len(self._indices)

    @property
    def labels(self):
        """Labels of all images, an array of int32."""
        return self._source.labels[self._indices]

    def batches(self, size):
        """Yields ``(pixels, labels)``: uint8 (n, size, size, 3) of up to ``size`` images, and int32 (n,).

        Raises:
            DataError: an image cannot be read; the message names it.
        """
        with concurrent.futures.ThreadPoolExecutor(self._threads) as pool:
            for start in range(0, len(self), size):
                chosen = self._indices[start : start + size]
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", module=r"PIL\.")  # of huge pictures, as when training checks them
                    pixels = list(pool.map(lambda index: self._work.pixels(index, 0), chosen.tolist()))
                yield np.stack(pixels), self._source.labels[chosen]

    def normalize(self, pixels):
        """Returns images as the network takes them: float32 (n, 3, size, size), in that order of memory."""
        out = np.empty(pixels.shape, np.float32)
        for image, into in zip(pixels, out, strict=True):
            self._work.normalize(image, into)
        return np.ascontiguousarray(out.transpose(0, 3, 1, 2))


class Files:
    """A source of images that the user has named, without labels.

    Args:
        paths: paths of the files.
    """

    def __init__(self, paths):
        self._paths = paths
        self.labels = np.full(len(paths), -1, np.int32)

    def __len__(self):
        return len(self._paths)

    def name(self, index):
        """The path of an image in one printable line."""
        return printable(self._paths[index])

    def read(self, index):
        """The bytes of an image."""
        try:
            with open_regular(self._paths[index]) as file:
                return file.read()
        except OSError as error:
            raise DataError(f"{self.name(index)}: {error.strerror}") from error

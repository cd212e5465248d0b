"""The DALI graphs: read -> decode -> crop and resize -> normalize -> NHWC, on the CPU or on a GPU."""

import dataclasses
import importlib

from mixprec.base.installation import install_hint
from mixprec.data.data_error import DataError
from mixprec.data.loaders.augmentation import parts_of
from mixprec.data.loaders.readers import read

# The share of the hardware decoder, if there is one, and the largest image of ImageNet: nothing is allocated later.
# From NVIDIA's ResNet-50 example for PyTorch (DALI, docs/examples/use_cases/pytorch/resnet50/main.py). Device memory is
# per thread, pinned memory twice that: about 200 and 270 MiB.
_GPU_DECODER = {
    "device": "mixed",
    "hw_decoder_load": 0.65,
    "preallocate_width_hint": 5980,
    "preallocate_height_hint": 6430,
    "device_memory_padding": 211025920,
    "host_memory_padding": 140544512,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DaliDevice:
    """The device on which DALI computes; the arguments are :class:`~mixprec.data.loaders.dali.DaliIterator`'s."""

    device_id: int | None = None
    decode: str = "gpu"

    def validate(self):
        """Raises :class:`DataError` for the first argument that is impossible."""
        if self.device_id is not None and self.device_id < 0:
            raise DataError(f"device_id {self.device_id}: must be None, 0, 1...")
        if self.decode not in ("gpu", "cpu"):
            raise DataError(f"decode {self.decode!r}: must be 'gpu' or 'cpu'")

    @property
    def decodes(self):
        """Whether the GPU takes part in decoding."""
        return self.device_id is not None and self.decode == "gpu"

    def decoder(self):
        """Returns arguments that all decoders take."""
        return _GPU_DECODER if self.decodes else {"device": "cpu"}


def require_dali():
    """Returns the module ``nvidia.dali``, or raises :class:`DataError` with what to install."""
    try:
        return importlib.import_module("nvidia.dali")
    except ImportError as error:
        raise DataError(f"NVIDIA DALI cannot be imported ({error}): {install_hint('dali')}") from error
    except Exception as error:  # a TypeError with python -OO, as it extends docstrings
        reason = f"{type(error).__name__}: {error}"
        raise DataError(f"NVIDIA DALI is broken here ({reason}): take data.loader=pillow instead") from error


def define_pipeline(images, spec, device, delivery, *, checkpoint=None, encoded=None, drawn=None):
    """Defines a pipeline whose ``run()`` returns (images (B, size, size, 3 or 4), labels (B, 1)).

    The order of the images and every random number follow from ``spec.seed`` alone. Checkpointing is always on:
    switching it changes DALI's order from the second epoch on.

    Args:
        images (ImageFiles or ImageShards): What is read.
        spec (BatchSpec): Shapes, augmentation, order.
        device (DaliDevice): Where it is done.
        delivery (Delivery): How they are delivered.
        checkpoint (bytes or None): ``pipeline.checkpoint()`` of an equal pipeline, to go on from there.
        encoded (EncodedBatches or None): Reads the images; None leaves that to DALI.
        drawn (DrawnBatches or None): Draws what is done to images by ``spec.augmentation``, if anything.

    Returns:
        nvidia.dali.Pipeline: Not yet built. Outputs are on the device, but for labels from WebDataset, which are texts
        on the host.
    """
    dali = require_dali()
    fn, types, crop, window = dali.fn, dali.types, spec.crop, delivery.shuffle_window
    # Made here: with conditionals DALI rewrites all functions that the graph calls, and these are for Python.
    before, after = (
        [(part, drawn.source(part)) for part in parts_of(spec.augmentation, of_pixels)] for of_pixels in (True, False)
    )

    def done(part, source, pixels):
        rows = fn.external_source(source, batch=True, dtype=types.FLOAT, **part.SOURCE)
        return part.dali(dali, pixels, rows, spec)

    decoder = {"name": "decode", "output_type": types.RGB, **device.decoder()}
    smooth = {"name": "resize", "interp_type": types.INTERP_LINEAR, "antialias": True}

    # Every operator that has a state has a name: a checkpoint finds them by it.
    def graph():
        files, labels = read(dali, images, spec, window) if encoded is None else _external(dali, encoded)
        if spec.train:  # of which only what the random crop (Szegedy et al. 2015) needs is decoded
            area, aspect = list(crop.crop_area), list(crop.aspect)
            pixels = fn.decoders.image_random_crop(files, random_area=area, random_aspect_ratio=aspect, **decoder)
        else:  # the centre crop comes with the normalization
            pixels = fn.decoders.image(files, **decoder)
        if device.device_id is not None:
            if not device.decodes:
                pixels = pixels.gpu()
            if encoded is not None or getattr(images, "format", None) != "webdataset":
                labels = labels.gpu()
        if spec.train:
            pixels = fn.resize(pixels, size=(crop.size, crop.size), **smooth)
        elif crop.resize is not None:
            pixels = fn.resize(pixels, resize_shorter=crop.resize, **smooth)
        mirror = fn.random.coin_flip(name="mirror", probability=0.5) if crop.flip else 0
        if before:
            pixels, mirror = fn.flip(pixels, name="flip", horizontal=mirror), 0
        for part, source in before:
            pixels = done(part, source, pixels)
        pixels = fn.crop_mirror_normalize(
            pixels,
            name="normalize",
            crop=(crop.size, crop.size),
            mirror=mirror,
            mean=list(spec.normalization.mean),
            std=list(spec.normalization.std),
            pad_output=delivery.pad_channels,
            dtype=types.FLOAT16 if delivery.dtype == "float16" else types.FLOAT,
            output_layout="HWC",
        )
        for part, source in after:
            pixels = done(part, source, pixels)
        return pixels, labels

    return new_pipeline(
        graph,
        spec,
        num_threads=delivery.threads,
        device_id=device.device_id,
        prefetch_queue_depth=delivery.prefetch,
        enable_conditionals=bool(before),
        checkpoint=checkpoint,
    )


def new_pipeline(graph, spec, **arguments):
    """Returns a pipeline of a function that defines a graph, with what all pipelines here have in common."""
    return require_dali().pipeline_def(graph)(
        batch_size=spec.batch_size,
        # Other crops and flips in each shard. Of this seed DALI takes the lower 32 bits; the steps between shards, of
        # 2^32 divided by the golden ratio, lead far away from the seeds that people choose.
        seed=(spec.dali_seed + spec.shard.shard * 0x9E3779B1) % 2**32,
        # The batches are handed out as views of DALI's buffers: only the dynamic executor leaves those alone.
        exec_dynamic=True,
        enable_checkpointing=True,
        **arguments,
    )


def _external(dali, encoded):
    """Adds the reading in Python to the graph."""
    external, types = dali.fn.external_source, dali.types
    files = external(encoded.encoded, name="reader", batch=True, dtype=types.UINT8, ndim=1)
    return files, external(encoded.labels, name="labels", batch=True, dtype=types.INT32, ndim=1)

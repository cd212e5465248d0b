"""The DALI graphs, on the CPU: file list -> decode -> crop and resize -> normalize -> NHWC."""

import dataclasses
import importlib

from mixprec.data.folders import DataError


@dataclasses.dataclass(frozen=True, kw_only=True)
class PipelineSpec:
    """Everything that fixes the content of the batches; the arguments are :class:`DaliIterator`'s."""

    batch_size: int
    train: bool
    size: int
    resize: int | None
    crop_area: tuple
    aspect: tuple
    flip: bool
    mean: tuple
    std: tuple
    seed: int


def require_dali():
    """Returns the module ``nvidia.dali``, or raises :class:`DataError` with what to install."""
    try:
        return importlib.import_module("nvidia.dali")
    except ImportError as error:
        raise DataError(f'NVIDIA DALI cannot be imported ({error}): pip install -e ".[dali]"') from error


def build_pipeline(images, spec, *, dtype, threads, checkpoint=None):
    """Builds a pipeline whose ``run()`` returns (images (B, size, size, 3), labels (B, 1)).

    The order of the images and every random number follow from ``spec.seed`` alone. Checkpointing is always on:
    switching it changes DALI's order from the second epoch on.

    Args:
        images (ImageFolder): What is read.
        spec (PipelineSpec): Shapes, augmentation, seed.
        dtype (str): ``'float16'`` or ``'float32'``.
        threads (int): DALI's CPU threads; they don't change the batches.
        checkpoint (bytes or None): ``pipeline.checkpoint()`` of an equal pipeline, to go on from there.

    Returns:
        nvidia.dali.Pipeline: Built, not yet run.
    """
    dali = require_dali()
    fn, types = dali.fn, dali.types
    order = (
        {"shuffle_after_epoch": True, "shuffle_after_epoch_seed": spec.seed} if spec.train else {"stick_to_shard": True}
    )

    # Every operator has a name: a checkpoint finds them by it.
    @dali.pipeline_def
    def graph():
        encoded, labels = fn.readers.file(
            name="reader", files=images.paths(), labels=images.labels.tolist(), pad_last_batch=True, **order
        )
        pixels = _random_crop(fn, types, encoded, spec) if spec.train else _plain(fn, types, encoded, spec)
        mirror = fn.random.coin_flip(name="mirror", probability=0.5) if spec.flip else 0
        pixels = fn.crop_mirror_normalize(
            pixels,
            name="normalize",
            crop=(spec.size, spec.size),
            mirror=mirror,
            mean=list(spec.mean),
            std=list(spec.std),
            dtype=types.FLOAT16 if dtype == "float16" else types.FLOAT,
            output_layout="HWC",
        )
        return pixels, labels

    pipeline = graph(
        batch_size=spec.batch_size,
        num_threads=threads,
        device_id=None,
        seed=spec.seed,
        # The batches are handed out as views of DALI's buffers: only the dynamic executor leaves those alone.
        exec_dynamic=True,
        enable_checkpointing=True,
        checkpoint=checkpoint,
    )
    pipeline.build()
    return pipeline


def _random_crop(fn, types, encoded, spec):
    """Decodes only what the random crop (Szegedy et al. 2015) needs, and resizes it to size x size."""
    pixels = fn.decoders.image_random_crop(
        encoded,
        name="decode",
        output_type=types.RGB,
        random_area=list(spec.crop_area),
        random_aspect_ratio=list(spec.aspect),
    )
    return fn.resize(
        pixels, name="resize", size=(spec.size, spec.size), interp_type=types.INTERP_LINEAR, antialias=True
    )


def _plain(fn, types, encoded, spec):
    """Decodes the image and resizes its shorter side; the centre crop comes with the normalization."""
    pixels = fn.decoders.image(encoded, name="decode", output_type=types.RGB)
    if spec.resize is None:
        return pixels
    return fn.resize(pixels, name="resize", resize_shorter=spec.resize, interp_type=types.INTERP_LINEAR, antialias=True)

"""The task ``schedule``: the learning rate that training would set in each iteration of a config."""

from mixprec.app.monitor.work.fields import RequestError
from mixprec.app.monitor.work.opened import open_config, open_source
from mixprec.app.parts.rates import described_rate, images_per_step, rates_of
from mixprec.app.parts.stages import stages_of, steps_of
from mixprec.data.data_error import DataError

_RANKS = 1  # a page does not know the number
_POINTS = 500
_BENDS = 200  # points that may be spent on iterations where the rate jumps or bends


def plan_schedule(request, progress):
    """Returns the learning rate over the run of a config.

    Args:
        request: with ``config``, ``overrides`` and ``images``, the number of training images or ``None``.
        progress: called with the share that is done and a text.

    Returns:
        dict: ``points``, at most 500 lists of epoch at the start of an iteration (a float), number of the iteration
        from 1 on, and its rate; ``peak``; ``images_per_step``; ``steps_per_epoch``; ``iterations``; ``images``;
        ``text``.

    Raises:
        OneLineError: the config is bad, there are no images to count, or too few for a step.
    """
    config = open_config(request.config, request.overrides)
    images = _count(config, progress) if request.images is None else request.images
    batch = max(stage.batch_size for stage in stages_of(config))
    if images < batch:
        name = "training.batch_size" if batch == config.training.batch_size else "one of progressive.batch_sizes"
        raise RequestError(f"'images' is {images}; wanted: at least {name} * ranks, {batch}, as for training")
    rates, steps = rates_of(config, images, _RANKS), steps_of(config, images, _RANKS)
    total = round(steps.until(config.training.epochs))
    iterations = _chosen(total, _bends(rates, steps, total))
    starts = [steps.start(iteration) for iteration in iterations]
    return {
        "points": [[start, each + 1, rates.at(start)] for start, each in zip(starts, iterations, strict=True)],
        "peak": rates.peak,
        "images_per_step": images_per_step(config, _RANKS),
        "steps_per_epoch": steps.in_epoch(config.training.epochs),
        "iterations": total,
        "images": images,
        "text": described_rate(config, _RANKS),
    }


def _count(config, progress):
    if config.data.format == "synthetic":
        return config.data.synthetic_images
    progress(0.0, "counting the training images")
    try:
        return len(open_source(config, "train"))
    except DataError as error:
        raise RequestError(f"{error}; 'images' may say how many training images there are") from error


def _bends(rates, steps, total):
    """Iterations beside the end of the warm-up, milestones and stages: a plot has its edges in the right position."""
    settings = rates.settings
    edges = [settings.warmup_epochs, *(settings.milestones if settings.kind == "step" else ())]
    edges += [until for until, _, _ in rates.stages[:-1]]
    around = [int(steps.until(edge)) + offset for edge in edges for offset in (-1, 0, 1)]
    return [iteration for iteration in around if 0 <= iteration < total][:_BENDS]


def _chosen(total, bends):
    """At most 500 iterations of ``total``, sorted: the first, the last, the bends, and others evenly spaced."""
    if total <= _POINTS:
        return range(total)
    even = _POINTS - len(set(bends))
    return sorted({*bends, *(iteration * (total - 1) // (even - 1) for iteration in range(even))})

"""The command ``kfac`` of ``scripts/benchmark.py``."""

import dataclasses
import time

from tqdm import tqdm

from benchmarks import command_arguments, machine, record_files
from benchmarks.kfac_training import compared_arms, image_sets, training_study
from benchmarks.kfac_training.training_run import train
from mixprec.native.threads import number_of_threads


@dataclasses.dataclass(frozen=True)
class _Default:
    batch: int
    epochs: int
    seeds: int
    dtypes: tuple[str, ...]
    grid: dict[str, tuple]
    tuning_seeds: tuple[int, ...]
    targets: tuple[float, float, float]


_DIGITS = _Default(480, 12, 5, ("float16", "float32"), compared_arms.LARGE_GRID, (100, 101, 102), (0.95, 0.97, 0.98))
_DEFAULTS = {
    "digits": _DIGITS,
    "digits-narrow": _DIGITS,
    "textures": _Default(1024, 8, 3, ("float16",), compared_arms.SMALL_GRID, (100,), (0.4, 0.5, 0.6)),
}
_CHANNELS = {"digits": (32, 64, 128), "digits-narrow": (16, 32, 32)}
_PICTURES = 4400  # of textures: three batches of 1,024 for training
_MOST_SEEDS = 100  # those for tuning come after


def add(commands):
    """Adds the command.

    Args:
        commands: what ``add_subparsers`` has returned.
    """
    text = "K-FAC, SGD and LARS on small data: epochs to an accuracy, time of a step; on the CPU"
    command = record_files.add_command(commands, _kfac, "kfac", text)
    positive = command_arguments.positive
    command.add_argument("--data", choices=_DEFAULTS, default="digits", help="what is learned")
    command.add_argument("--batch", type=positive, help="images in a batch; default: 480, of textures 1024")
    command.add_argument("--seeds", type=_seeds, help="trainings of each reported row; default: 5, of textures 3")
    command.add_argument("--epochs", type=positive, help="of a training; default: 12, of textures 8")
    help = "that models compute in; default: both, of textures float16"
    command.add_argument("--dtype", choices=("float16", "float32"), help=help)
    help = "begin no training after so many minutes"
    command.add_argument("--minutes", type=command_arguments.amount, help=help)


def _seeds(text):
    number = command_arguments.positive(text)
    if number > _MOST_SEEDS:
        raise command_arguments.ArgumentsError(f"found {text!r}, expected at most {_MOST_SEEDS}")
    return number


def _kfac(save, data, batch, seeds, epochs, dtype, minutes):
    start, default = time.monotonic(), _DEFAULTS[data]
    batch, epochs, seeds = batch or default.batch, epochs or default.epochs, seeds or default.seeds
    if data in _CHANNELS:
        images = image_sets.digit_images(_CHANNELS[data])
    else:
        images = image_sets.texture_images(_PICTURES)
    if batch > len(images.train_x):
        raise command_arguments.ArgumentsError(f"--batch {batch}: must be at most {len(images.train_x)}")
    plan = training_study.Plan(
        default.grid,
        default.dtypes if dtype is None else (dtype,),
        default.tuning_seeds,
        tuple(range(seeds)),
        default.targets,
    )
    print(f"{images.title}, batch {batch}, {epochs} epochs", flush=True)
    with tqdm(total=plan.trainings, unit="training", leave=False, disable=None) as bar:

        def one(arm, dtype, seed):
            bar.set_postfix_str(f"{arm.name}, {arm.title}, {dtype}, seed {seed}")
            found = train(images, arm, dtype, seed, batch=batch, epochs=epochs)
            bar.update()
            return found

        found = training_study.run(plan, one, lambda: minutes is None or time.monotonic() - start < 60 * minutes)
    settings = {"data": data, "batch": batch, "seeds": seeds, "epochs": epochs, "dtypes": plan.dtypes}
    settings |= {"minutes": minutes, "momentum": compared_arms.MOMENTUM, "weight_decay": compared_arms.WEIGHT_DECAY}
    settings |= {"images": images.title, "threads": number_of_threads()}
    record = {"settings": settings, **machine.record(), **training_study.as_json(plan, *found)}
    record["duration"] = round(time.monotonic() - start, 1)
    print(training_study.table(record))
    save(record)

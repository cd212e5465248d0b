"""Augmentation of training images after crop and flip. Parameters are drawn here in Python for all loaders.

The parameters of an image depend only on the seed, the epoch and the position of the image in it: a resumed run gets
the images that it would have had. DALI gets them through an external source.
"""

from dataclasses import dataclass, fields

from mixprec.base.bounds import SEVERAL
from mixprec.base.declaration import between, key
from mixprec.data.loaders import erasing, random_policies
from mixprec.data.loaders.typed import impossible

#: The augmentations in their order, a module each. Each declares its ``Keys``, the first of which turns it on;
#: ``COUNTER``, the counter of its random numbers; ``IS_OF_PIXELS``, whether it takes uint8 pixels or the normalized
#: image; ``SOURCE``, name and dimensions of DALI's source; and the functions ``impossible``, ``described``, ``draw``,
#: ``pillow``, ``rows`` and ``dali``.
PARTS = (random_policies, erasing)


@dataclass(frozen=True, kw_only=True)
class Augmentation(*(part.Keys for part in reversed(PARTS))):  # fields of the last base come first
    """The settings of all augmentations.

    Attributes:
        repeats (int): Copies of an image in a batch of all shards, see :class:`~mixprec.data.loaders.order.Order`.

    Example:
        >>> from mixprec.data import Augmentation
        >>> Augmentation(augment="rand", erase=0.25).repeats
        1
    """

    repeats: int = key(
        "Training: copies of an image in a batch of all processes, each augmented separately (Hoffer et al. 2020). An "
        "epoch has as many images as before, copies included.",
        1,
        limit=between(1, SEVERAL),
        aliases=("aug_repeats",),
    )


def parts_of(settings, of_pixels=None):
    """Returns the modules of :data:`PARTS` that are on, all or only the ones with this ``IS_OF_PIXELS``."""
    on = [part for part in PARTS if _is_on(settings, fields(part.Keys)[0].name)]
    return [part for part in on if of_pixels in (None, part.IS_OF_PIXELS)]


def problems(settings, train):
    """Yields a message for each impossible setting in training or in validation."""
    for name in (*(fields(part.Keys)[0].name for part in PARTS), "repeats"):
        if not train and _is_on(settings, name):
            yield f"{name} {getattr(settings, name)}: only for training"
    for part in PARTS:
        yield from part.impossible(settings)
    yield from impossible(settings)


def _is_on(settings, name):
    return getattr(settings, name) != getattr(Augmentation, name)


def described(settings):
    """Returns descriptions of the augmentations, a list."""
    copies = [f"{settings.repeats} copies of an image, one behind the other"] if settings.repeats > 1 else []
    return [part.described(settings) for part in parts_of(settings)] + copies


class DrawnBatches:
    """Sources for DALI's ``external_source``: the drawn parameters of the images of each batch.

    Args:
        spec (BatchSpec): Augmentation and seed.
        positions (callable): From the number of a batch to ``(epoch, positions of its images)``.
        first (int): Number of the batch of DALI's first iteration.
    """

    def __init__(self, spec, positions, first):
        self._spec, self._positions, self._first = spec, positions, first
        self._began = {}  # DALI's first iteration, which after a resume is not 0, of each source

    def source(self, part):
        """Returns a callable from DALI's iteration to a list of float32 arrays, one for each image."""

        def source(iteration):
            number = self._first + iteration - self._began.setdefault(part, iteration)
            epoch, positions = self._positions(number)
            return [part.rows(self._spec, part.draw(self._spec, epoch, int(position))) for position in positions]

        return source

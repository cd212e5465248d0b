"""The tasks by name: the keys of their requests, their functions, and their limits."""

import dataclasses
from collections.abc import Callable

from mixprec.app.monitor.work import fields
from mixprec.app.monitor.work.augment_task import augment
from mixprec.app.monitor.work.data_task import describe_data
from mixprec.app.monitor.work.evaluate_task import evaluate
from mixprec.app.monitor.work.images_task import show_images
from mixprec.app.monitor.work.inside_task import look_inside
from mixprec.app.monitor.work.schedule_task import plan_schedule
from mixprec.app.monitor.work.uploaded_image import LONGEST
from mixprec.base.bounds import INT32

_CPU_SECONDS = 120
_SETTINGS = {"root": fields.path("the folder of results in which runs lie", None), "overrides": fields.overrides()}
_CONFIG = {"config": fields.path("a config file"), **_SETTINGS}
_FOLDER = {"run": fields.path("a results folder")}
_RUN = {**_FOLDER, "weights": fields.path("the name of a .npz file in the results folder", None), **_SETTINGS}


@dataclasses.dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
        run: function of the request, an object with a value for each field, and of a function ``progress(share,
            text)``; it returns the answer, a dict.
        fields: dict from key of the request to :class:`mixprec.app.monitor.work.fields.Field`.
        seconds: limit of its processor time; ``None`` for no limit.
    """

    run: Callable
    fields: dict
    seconds: int | None = None


TASKS = {
    "evaluate": Task(evaluate, _RUN),
    "images": Task(show_images, {**_FOLDER, **_SETTINGS, "indices": fields.wholes(INT32, 60)}),
    "data": Task(describe_data, _CONFIG),
    "schedule": Task(plan_schedule, {**_CONFIG, "images": fields.whole(1, INT32, None)}),
    "augment": Task(augment, {**_CONFIG, "index": fields.whole(0, INT32), "count": fields.whole(1, 32, 8)}),
    "inside": Task(
        look_inside,
        {**_RUN, "image": fields.text("an image file of at most 20 MB in base64", LONGEST)},
        seconds=_CPU_SECONDS,
    ),
}

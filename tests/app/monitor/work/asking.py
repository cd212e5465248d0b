"""Requests to the tasks of the monitor, in this process."""

import base64
import io
import json

import numpy as np
from PIL import Image

from mixprec.app.finished import json_lines
from mixprec.app.monitor.work import serving
from mixprec.app.monitor.work.tasks import TASKS


def lines(task, request, tasks=TASKS):
    """Returns the exit code, and all lines as another program reads them."""
    written = []
    content = request if isinstance(request, bytes) else json.dumps(request).encode()
    code = serving.serve([task], tasks, io.BytesIO(content), lambda line: written.append(json_lines.line(line)))
    return code, [json.loads(line, parse_constant=_refuse) for line in written]


def answer(task, **request):
    """Returns the answer of a task that must succeed."""
    code, found = lines(task, request)
    assert code == 0, str(found[-1])[:1000]
    shares = [line["progress"] for line in found[:-1]]
    assert shares == sorted(shares)
    assert all(0 <= share <= 1 for share in shares)
    return found[-1]


def error(task, **request):
    """Returns the line of a task that must refuse."""
    code, found = lines(task, request)
    assert code == serving.BAD, str(found[-1])[:1000]
    assert list(found[-1]) == ["error"]
    assert found[-1]["error"].isprintable()
    return found[-1]["error"]


def picture(text):
    """Returns the pixels of a PNG in base64."""
    with Image.open(io.BytesIO(base64.b64decode(text, validate=True)), formats=["PNG"]) as image:
        return np.asarray(image)


def _refuse(name):
    raise AssertionError(f"{name} is no JSON")

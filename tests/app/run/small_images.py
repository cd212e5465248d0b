"""Images that take no time to read, for runs of the training command."""

import numpy as np
from PIL import Image


def make(root):
    """Makes folders with 22 training and 7 validation images of three classes.

    Args:
        root: folder for them, a ``pathlib.Path``; it need not exist.
    """
    random = np.random.RandomState(0)
    for split, count in (("train", 22), ("val", 7)):
        for index in range(count):
            folder = root / split / "abc"[index % 3]
            folder.mkdir(parents=True, exist_ok=True)
            pixels = random.randint(0, 60, (12, 12, 3)) + 90 * (index % 3)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{index:02}.jpg", quality=95)

"""When pictures are drawn: not more than 5 % of the time, and the last one always."""

import pytest

from mixprec.training import pictures as module
from mixprec.training.pictures import Pictures


def test_pictures_take_5_percent_of_the_time_and_the_last_is_drawn(monkeypatch):
    now, drawn = [0.0], []
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    pictures = Pictures()

    def call(number):
        def write():
            now[0] += 1
            drawn.append((number, now[0]))

        pictures.draw(write)

    for number in range(50):  # a call each second, of which drawing takes one
        call(number)
        now[0] += 1
    assert drawn == [(0, 1), (20, 22), (40, 43)]
    pictures.finish()
    pictures.finish()  # the second call has nothing to draw
    assert [number for number, _ in drawn] == [0, 20, 40, 49]


def test_a_picture_that_fails_is_not_drawn_again_at_the_end():
    pictures = Pictures()

    def write():
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space"):
        pictures.draw(write)
    pictures.finish()

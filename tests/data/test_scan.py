"""mixprec.data.sources.scan: what is looked at, what is remembered, and what bad images lead to."""

import os
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixprec.data.data_error import DataError, printable
from mixprec.data.sources import scan
from mixprec.data.sources.scan import check, digest

COUNT = 200  # several chunks of the scan


@pytest.fixture(autouse=True)
def cache_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


class Images:
    """Images of which some are bad, and which of them have been looked at."""

    def __init__(self, bad=(), count=COUNT):
        self.bad = dict(bad)
        self.digests = np.arange(1, count + 1, dtype=np.uint64)
        self.seen = set()

    def check(self, on_error="stop"):
        self.seen.clear()
        return check("/data", self.digests, self._problem, "/data/{}".format, on_error)

    def _problem(self, index):
        self.seen.add(index)
        return self.bad.get(index)


def test_good_images_are_looked_at_once():
    images = Images()
    good, skipped = images.check()
    assert good.all()
    assert good.shape == (COUNT,)
    assert skipped == ()
    assert images.seen == set(range(COUNT))
    images.check()
    assert images.seen == set()
    images.digests[7] += 1000
    images.check()
    assert images.seen == {7}


def test_first_bad_image_stops_and_the_others_are_counted():
    images = Images({150: "torn", 3: "burnt", 199: "lost"})
    with pytest.raises(DataError, match=r"^/data/3: burnt \(and 2 more: 150, 199\); leave out "):
        images.check()


def test_bad_images_are_left_out_in_their_order():
    good, skipped = Images({150: "torn", 3: "burnt"}).check("skip")
    np.testing.assert_array_equal(np.flatnonzero(~good), [3, 150])
    assert skipped == (("/data/3", "burnt"), ("/data/150", "torn"))


@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_bad_images_are_looked_at_every_time_and_good_ones_are_not(on_error):
    images = Images({150: "torn", 3: "burnt"})
    for _ in range(2):
        if on_error == "stop":
            with pytest.raises(DataError):
                images.check()
        else:
            images.check("skip")
    assert images.seen == {3, 150}
    images.bad.clear()  # repaired, and nothing tells from outside
    assert images.check()[0].all()
    assert images.seen == {3, 150}
    images.check()
    assert images.seen == set()


def test_images_that_are_all_bad_stop_it_in_any_case():
    images = Images(dict.fromkeys(range(COUNT), "torn"))
    with pytest.raises(DataError, match=rf"^/data/0: torn \(and {COUNT - 1} more: 1, .*, \.\.\.\); no image is left$"):
        images.check("skip")


def test_image_of_which_nothing_is_known_is_never_taken_for_checked():
    images = Images()
    images.digests[5] = 0
    images.check()
    images.check()
    assert images.seen == {5}


def test_what_has_been_checked_is_remembered_after_an_interruption():
    images = Images()

    def interrupted(index):
        if index == COUNT - 1:
            raise KeyboardInterrupt
        return

    with pytest.raises(KeyboardInterrupt):
        check("/data", images.digests, interrupted, str)
    images.check()
    assert COUNT - 1 in images.seen
    assert len(images.seen) < COUNT


def test_warnings_of_pillow_are_kept_back():
    """Of a picture of 100 megapixels, for example."""

    def warns(index):
        warnings.warn_explicit("decompression bomb", UserWarning, "Image.py", 1, module="PIL.Image")

    check("/data", [1], warns, str)


def test_digest_changes_with_path_size_time_and_part(tmp_path):
    path = str(tmp_path / "a")
    (tmp_path / "a").write_text("1")

    def now(part=""):
        return digest(path, os.stat(path), part)

    seen = [now(), now("x"), now("y"), digest(path + "b", os.stat(path))]
    os.utime(path, ns=(0, 5))
    seen.append(now())
    (tmp_path / "a").write_text("12")
    os.utime(path, ns=(0, 5))
    seen.append(now())
    assert len(set(seen)) == len(seen)
    assert all(0 < value < 2**64 for value in seen)
    assert now() == seen[-1]


def test_check_that_became_stricter_looks_at_everything_again(tmp_path, monkeypatch):
    before = digest("/a", os.stat(tmp_path))
    monkeypatch.setattr(scan, "CHECK_VERSION", scan.CHECK_VERSION + 1)
    assert digest("/a", os.stat(tmp_path)) != before


@pytest.mark.slow
@given(st.text())
def test_printable_text_is_one_line_and_as_it_was_if_it_was_printable(text):
    shown = printable(text)
    assert shown.isprintable()
    if text.isprintable():
        assert shown == text

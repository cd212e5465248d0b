"""mixprec.data.sources.classes: labels and names of classes that do not fit together are refused in one line."""

import dataclasses
import os

import numpy as np
import pytest

from mixprec.app.parts.images import write_records
from mixprec.data.sources.classes import check_classes, check_labels, check_same_classes, class_folders, write_classes
from mixprec.data.sources.folders import ImageFiles
from tests.data.refusal import refused

CAT_DOG = ("cat", "dog")


def folders(root="/train", classes=CAT_DOG):
    files = tuple(f"{name}/a.jpg" for name in classes)
    return ImageFiles(root, tuple(classes), files, np.arange(len(files), dtype=np.int32))


def listed(*pairs, root="/val.txt"):
    files, labels = zip(*pairs, strict=True)
    classes = tuple(map(str, range(max(labels) + 1)))
    numbers = np.arange(1, len(files) + 1)
    return ImageFiles(root, classes, files, np.array(labels, np.int32), folder="/", line_numbers=numbers)


@dataclasses.dataclass
class Shards:
    """What a source of foreign shards has that is asked here."""

    labels: np.ndarray
    root: str = "/shards"
    named: bool = False

    def where(self, index):
        return f"/shards/a.tar: {index}"


def test_class_folders_must_be_as_many_as_the_model_has_classes():
    check_labels(folders(), 2)
    for classes in (1, 3):
        assert refused(check_labels, folders(), classes) == f"/train: 2 classes, but model.classes is {classes}"


def test_labels_of_a_list_must_be_below_the_number_of_classes():
    images = listed(("a.jpg", 0), ("b.jpg", 3), ("c.jpg", 9), ("d.jpg", 3))
    check_labels(images, 10)
    check_labels(images, 1000)
    assert refused(check_labels, images, 9) == "/val.txt:3: label 9, but model.classes is 9: labels are 0 to 8"
    assert refused(check_labels, images, 3).startswith("/val.txt:2: label 3 (and 2 more), but model.classes is 3")


def test_labels_that_count_from_one_are_recognized():
    images = listed(*((f"{label}.jpg", label) for label in range(1, 11)))
    assert refused(check_labels, images, 10) == (
        "/val.txt:10: label 10, but model.classes is 10: labels are 0 to 9; the smallest label is 1, "
        "but they count from 0"
    )


def test_labels_of_shards_are_named_by_their_sample():
    message = refused(check_labels, Shards(np.array([0, 5, 10], np.int32)), 10)
    assert message.startswith("/shards/a.tar: 2: label 10, but model.classes is 10")


def test_class_folders_that_differ_are_refused_whichever_side_lacks_one():
    train, val = folders(), folders("/val", ("cat",))
    check_same_classes(train, folders("/val"))
    expected = "/val: class folder 'dog', which /train has, is missing (1 class against 2)"
    assert refused(check_same_classes, train, val) == expected
    assert refused(check_same_classes, val, train) == expected
    many = folders("/many", ("cat", "dog", "eel", "fox"))
    assert " is missing (and 2 more) (1 class against 4)" in refused(check_same_classes, many, val)
    both = "/val: class folder 'dog', which /train has, is missing (2 classes against 2); 'rectangle' is not in /train"
    assert refused(check_same_classes, train, folders("/val", ("cat", "rectangle"))) == both


def test_lists_need_not_have_every_class():
    check_same_classes(listed(("a.jpg", 0), ("b.jpg", 7)), listed(("c.jpg", 3)))
    check_same_classes(folders(), listed(("c.jpg", 1)))
    check_same_classes(Shards(np.arange(3)), listed(("c.jpg", 1)))


def test_list_that_disagrees_with_the_folders_of_the_other_source_is_refused():
    val = listed(("val/cat/x.jpg", 1), ("val/dog/y.jpg", 0))
    assert refused(check_same_classes, folders(), val) == ("/val.txt: class folder 'cat' has label 1, but 0 in /train")
    train = listed(("train/cat/x.jpg", 0), ("train/dog/y.jpg", 1), root="/train.txt")
    assert refused(check_same_classes, train, val) == ("/val.txt: class folder 'cat' has label 1, but 0 in /train.txt")
    check_same_classes(train, listed(("val/cat/x.jpg", 0), ("val/dog/y.jpg", 1), ("val/eel/y.jpg", 2)))


def pairs(*found):
    """Files and labels of (folder, label, number of images)."""
    folders = [(folder, index) for index, (folder, _, count) in enumerate(found) for _ in range(count)]
    files = [os.path.join(folder, f"{index}.jpg") for folder, index in folders]
    return files, np.array([label for _, label, count in found for _ in range(count)])


def test_folders_with_one_label_each_are_class_folders():
    assert class_folders(*pairs(("a/cat", 3, 5), ("b/dog", 0, 1))) == ({"a/cat": 3, "b/dog": 0}, [])


def test_few_images_that_disagree_with_class_folders_are_found():
    label_of, odd = class_folders(*pairs(("cat", 0, 20), ("dog", 0, 2), ("dog", 1, 10)))
    assert label_of == {"cat": 0, "dog": 1}
    assert odd == [20, 21]
    assert class_folders(*pairs(("cat", 0, 1), ("cat", 1, 1), ("dog", 1, 1)))[1] == [1]


OTHER_FOLDERS = [
    [("", 0, 1), ("", 1, 1), ("", 2, 20)],  # no folder
    [("", 0, 9), ("", 1, 1), ("cat", 1, 9)],  # not for all images
    [("val", label, 5) for label in range(10)],  # one folder for all
    [(f"{label % 3}", label, 5) for label in range(10)],  # folders that only limit the number of files in each
    [("0", 0, 19), ("0", 1, 1), ("1", 0, 19), ("1", 1, 1)],  # likewise, of few classes, one of them frequent
    [("collie", 1, 5), ("beagle", 1, 5), ("tabby", 0, 5)],  # labels that stand for groups of folders
    [("day", 0, 7), ("day", 1, 3), ("night", 0, 3), ("night", 1, 7)],  # folders that have to do with the label
]


@pytest.mark.parametrize("found", OTHER_FOLDERS)
def test_other_folders_say_nothing_about_labels(found):
    assert class_folders(*pairs(*found)) == ({}, [])


@pytest.mark.parametrize("names", [CAT_DOG, ("a b", "two\nlines", "\udce9", "\N{SNOWMAN}"), ("", " ")])
def test_written_classes_are_those_that_are_checked(tmp_path, names):
    path = str(tmp_path / "classes.txt")
    images = folders(classes=names)
    write_classes(path, images)
    check_classes(path, images)
    with open(path, encoding="utf-8") as file:
        assert len(file.readlines()) == len(names)


def test_classes_that_changed_are_named(tmp_path):
    path = str(tmp_path / "classes.txt")
    write_classes(path, folders(classes=("ant", "bee", "cat", "cow")))
    swapped = folders(classes=("ant", "bee", "dog", "cow"))
    assert refused(check_classes, path, swapped) == f"{path}: class 2 is 'cat' there, 'dog' in /train"
    fewer = folders(classes=("ant", "bee"))
    assert refused(check_classes, path, fewer) == f"{path}: 4 classes there, 2 in /train"


def test_classes_that_cannot_be_read_are_named(tmp_path):
    path = str(tmp_path / "classes.txt")
    assert refused(check_classes, path, folders()).startswith(f"{path}: the classes of the earlier run cannot be read")
    (tmp_path / "classes.txt").write_bytes(b"\xff\n")
    assert refused(check_classes, path, folders()).endswith("(not UTF-8)")


def test_list_of_skipped_images_is_that_of_the_newest_run(tmp_path):
    bad = dataclasses.replace(folders("/val"), skipped=(("/val/cat/b.jpg", "the file is empty"),))
    write_records(tmp_path, folders(), bad)
    assert (tmp_path / "skipped.txt").read_text() == "/val/cat/b.jpg: the file is empty\n"
    write_records(tmp_path, folders(), folders("/val"))
    assert [path.name for path in tmp_path.iterdir()] == ["classes.txt"]

"""Whether the planted faults of ``tests/mutants.py`` fit the library as it is now."""

import collections

import pytest

from tests import ROOT
from tests.mutants import MUTANTS

pytestmark = pytest.mark.slow
AT_LEAST, OF_EACH_PACKAGE = 36, 3


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_can_be_planted(mutant):
    text = (ROOT / mutant.path).read_text()
    planted = mutant.planted(text)
    assert planted != text
    if mutant.path.suffix == ".py":
        compile(planted, mutant.file, "exec")
    for name in mutant.tests.split():
        assert (ROOT / "tests" / name.partition("::")[0]).exists()


def test_every_package_has_mutants():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= AT_LEAST
    counts = collections.Counter(mutant.package for mutant in MUTANTS)
    without = {"recipes", "native"}  # configs; three files that find a library
    packages = {path.parent.name for path in (ROOT / "mixprec").glob("*/__init__.py")} - without
    assert {name for name in packages if counts[name] < OF_EACH_PACKAGE} == set()

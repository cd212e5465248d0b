"""Each fenced block of README and docs runs, or the line before it says why not."""

import pytest

from mixprec.app.commands import main
from tests import ROOT
from tests.page_blocks import LANGUAGES, blocks

BLOCKS = {
    str(path.relative_to(ROOT)): blocks(str(path.relative_to(ROOT)), path.read_text())
    for path in (*ROOT.glob("README*.md"), *ROOT.glob("examples/*.md"), *sorted((ROOT / "docs").glob("*.md")))
}
_RUN = [page for page, found in BLOCKS.items() if any(block.language in LANGUAGES - {"text"} for block in found)]


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "digits"
    assert main.main(["digits", str(folder)]) == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("page", _RUN)
def test_blocks_run_in_their_order(page, digits, tmp_path):
    tmp_path.joinpath("data").mkdir()
    tmp_path.joinpath("data", "digits").symlink_to(digits)
    tmp_path.joinpath("examples").symlink_to(ROOT / "examples")
    for block in BLOCKS[page]:
        block.run(tmp_path)


@pytest.mark.parametrize("page", BLOCKS)
def test_a_block_has_a_language_and_runs_or_says_why_not(page):
    for block in BLOCKS[page]:
        assert block.language in LANGUAGES or block.not_run, f"{page}:{block.line}: {block.language or 'no language'}"


def test_blocks_are_found_with_their_notes():
    text = "a\n<!-- save as: a.py -->\n```python\nx = 1\n```\n\n- b\n  ```text\n  y\n   z\n  ```\n"
    text += "<!-- not run: needs a GPU -->\n````bash\n```\n````\n"
    first, second, third = blocks("p.md", text)
    assert (first.line, first.language, first.text, first.save_as) == (3, "python", "x = 1\n", "a.py")
    assert (second.language, second.text, second.not_run, second.save_as) == ("text", "y\n z\n", None, None)
    assert (third.language, third.text, third.not_run) == ("bash", "```\n", "needs a GPU")
    with pytest.raises(AssertionError, match=r"(?s)p.md:1: .*ZeroDivisionError"):
        blocks("p.md", "```python\n1 / 0\n```\n")[0].run(ROOT)

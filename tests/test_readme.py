"""What README and the pages name exists, and their words are plain; tests/test_pages.py runs their blocks."""

import importlib.util
import pathlib
import pkgutil
import re
import subprocess
import sys

import pytest

from tests import ROOT
from tests.page_blocks import blocks

PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in (
        *ROOT.glob("README*.md"),
        ROOT / "CONTRIBUTING.md",
        ROOT / "examples/README.md",
        *sorted((ROOT / "docs").glob("*.md")),
    )
}
JAPANESE = [page for page in PAGES if page.endswith(".ja.md")]
SOURCES = {".py", ".cu", ".cuh", ".cpp", ".h", ".inl"}
FOLDERS = "benchmarks|configs|docs|mixprec|models|scripts|tests"
PLACEHOLDER = re.compile(r"[A-Z]{4,}")  # benchmarks/results/DATE-bars-MACHINE.json
# Files to be written by the reader, a folder of Chainer's repository, and names inside of a snapshot.
NOT_IN_THE_REPOSITORY = {
    "CONTRIBUTING.md": {"mixprec/data/sources/csv_list.py", "mixprec/optimizer/rules/lion.py"},
    "docs/config.md": {"configs/mine.yaml"},
    "docs/numerics.md": {
        f"mixprec/{name}" for name in ("dropout_state0", "last_step_skipped", "loss_scale", "skipped")
    },
}


def test_the_program_of_the_readme_trains(tmp_path):
    (block,) = (each for each in blocks("README.md", PAGES["README.md"]) if each.language == "python")
    command = [sys.executable, "-W", "error", "-c", block.text]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+),", done.stdout)]
    assert len(losses) == 10
    assert losses == sorted(losses, reverse=True)


def test_the_readme_is_a_short_page_with_the_results_of_one_file(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    figures = importlib.import_module("figures")
    for name in figures.HEADS:
        assert len(PAGES[name].splitlines()) <= 110, name
        assert PAGES[name] == figures.filled(name, PAGES[name]), f"python scripts/figures.py writes {name}"


def test_the_japanese_pages_have_the_headings_and_programs_of_the_english_ones():
    for name in JAPANESE:
        english, japanese = PAGES[name.replace(".ja.md", ".md")], PAGES[name]
        assert _outline(japanese) == _outline(english), name
        theirs, own = (
            [(each.language, re.sub(r" *#.*", "", each.text)) for each in blocks(name, text)]
            for text in (english, japanese)
        )
        assert own == theirs, name


def test_pages_are_short():
    words = {
        page: len(text.split()) for page, text in PAGES.items() if page not in JAPANESE and page != "CONTRIBUTING.md"
    }
    assert sum(words.values()) <= 45_000, words


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page):
    here = (ROOT / page).parent
    for name in re.findall(r"\]\(([^)\s]+)\)", _without_blocks(PAGES[page])):
        if name.startswith("https://"):
            continue
        path, _, anchor = name.partition("#")
        target = pathlib.Path(here, path) if path else ROOT / page
        assert target.exists(), name
        if anchor:
            assert anchor in _anchors(target.read_text()), name


def test_every_page_is_in_the_reading_order():
    linked = set(re.findall(r"\]\(([\w.-]+\.md)\)", PAGES["docs/README.md"]))
    assert linked == {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}


@pytest.mark.parametrize("page", PAGES)
def test_every_file_it_names_exists(page):
    names = set(re.findall(rf"(?<![\w./<-])(?:{FOLDERS})/[\w./-]*\w", PAGES[page]))
    for name in names - NOT_IN_THE_REPOSITORY.get(page, set()):
        places = (ROOT / name, ROOT / f"{name}.py", ROOT / "mixprec" / name)
        assert PLACEHOLDER.search(name) or any(place.exists() for place in places), name


def test_every_name_is_there_after_a_plain_import():
    """All ``mixprec.x.y`` of the pages, but in commands and in imports, which load modules themselves."""
    pattern = r"(?<![\w./-])(?<!from )(?<!import )(?<!-m )mixprec(?:\.[A-Za-z_]\w*)+"
    names = sorted({name for text in PAGES.values() for name in re.findall(pattern, text)})
    assert "mixprec.training.LossScaleLog" in names
    if importlib.util.find_spec("onnxruntime") is None:  # as beside the extra legacy
        names.remove("mixprec.export.onnx")
    code = f"import mixprec\nfor name in {names}:\n    eval(name)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


@pytest.mark.parametrize("page", ["README.md", "docs/getting-started.md", "docs/tests.md"])
def test_every_make_target_it_names_exists(page):
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for name in re.findall(r"\bmake ([\w-]+)`", PAGES[page]):
        assert name in targets


def test_pages_are_in_plain_words():
    for page, text in PAGES.items():
        assert not re.findall(r"\b(?:nobody|somebody|whoever)\b", text, re.IGNORECASE), page


def test_few_sentences_are_translated_word_by_word():
    """``that of`` and ``those of`` are rare in the library and the pages, and ``is another one`` does not occur."""
    files = [path for path in (ROOT / "mixprec").rglob("*") if path.suffix in SOURCES]
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in files} | PAGES
    assert _pages_with(r"\bis\s+another\s+one\b", texts) == {}
    counts = _pages_with(r"\b(?:that|those)\s+of\b", texts)
    assert sum(counts.values()) <= 60, counts


def test_modules_and_names_in_docstrings_exist():
    """What has moved is named by its new home: roles of Sphinx, and the reading orders of packages."""
    for path in (ROOT / "mixprec").rglob("*.py"):
        text = path.read_text()
        for name in re.findall(r":(?:mod|class|func|meth|data|exc):`(?:[^`<]*<)?~?(mixprec\.[\w.]+)>?`", text):
            pkgutil.resolve_name(name)
        order = re.search(r"eading order\..*?\"\"\"", text, re.DOTALL) if path.name == "__init__.py" else None
        there = {each.stem for each in path.parent.iterdir()} | {"onnx", "export"}  # a package and an extra
        assert not (set(re.findall(r"``(\w+)``", order[0])) - there if order else None), path


def _pages_with(pattern, texts):
    counts = {name: len(re.findall(pattern, text, re.IGNORECASE)) for name, text in texts.items()}
    return {name: count for name, count in counts.items() if count}


def _outline(text):
    """The levels of the headings, in their order."""
    return [len(marks) for marks in re.findall(r"^(#+) ", _without_blocks(text), re.MULTILINE)]


def _programs(page, text):
    """The blocks of a page without comments, which are translated."""
    return [(each.language, re.sub(r" *#.*", "", each.text), each.save_as) for each in blocks(page, text)]


def _without_blocks(text):
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def _anchors(text):
    """The anchors that GitHub gives to the headings of a page."""
    titles = re.findall(r"^#+ (.*)$", _without_blocks(text), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles)
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in plain}

"""The Python of README and of pages in docs runs as printed, and what they name exists."""

import importlib.util
import pathlib
import pkgutil
import re
import subprocess
import sys

import pytest

from tests import ROOT

PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
}
RUN = ("README.md", *(f"docs/{page}.md" for page in ("capture", "getting-started", "convert", "export", "primitives")))
BLOCKS = {page: re.findall(r"```python\n(.*?)```", PAGES[page], re.DOTALL) for page in RUN}
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
NUMBERED = [
    pytest.param(block, id=f"{page}-{i}", marks=() if (page, i) == ("docs/getting-started.md", 0) else pytest.mark.slow)
    for page in RUN
    for i, block in enumerate(BLOCKS[page])
]


def _run(block, folder):
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", block], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("block", NUMBERED)
def test_python_runs_as_printed(block, tmp_path):
    _run(block, tmp_path)


def test_the_three_calls_train(tmp_path):
    lines = _run(BLOCKS["README.md"][0], tmp_path).splitlines()
    losses = [float(re.search(r"loss ([\d.]+),", line)[1]) for line in lines]
    assert len(losses) == 10
    assert losses == sorted(losses, reverse=True)


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
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", PAGES["docs/README.md"]))
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


def _without_blocks(text):
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def _anchors(text):
    """The anchors that GitHub gives to the headings of a page."""
    titles = re.findall(r"^#+ (.*)$", _without_blocks(text), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles)
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in plain}

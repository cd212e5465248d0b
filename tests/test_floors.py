"""Imports of mixprec only go down: from one floor to those above it in the list, and there is no circle.

And a base name names one module.
"""

import ast
import functools
import os
import re
from pathlib import Path

import pytest

import mixprec

ROOT = Path(__file__).parents[1]

# One floor a line, the ground floor first. A module may import its own room, and all that stands in lines above its own
# line. The three parts of the house are GROUND, LIBRARY and APPLICATION, which the face is on top of.
GROUND = """
    compat
    base
    old_code
    native
    backends
"""
LIBRARY = """
    functions
    bridge
    startup precision
    links
    distributed kfac
    optimizer rewrite
    activation_memory
    graph_capture
    patches
    data
    export
    training
"""
APPLICATION = """
    recipes
    app.config
    app.parts
    app.run
    app.finished
    app.monitor
    app.commands
    app
"""
FLOORS = f"{GROUND}{LIBRARY}{APPLICATION} mixprec __main__"

# Rooms are folders with Python files, mixprec itself and the networks of its recipes among them, and loose modules at
# the top.
MOST_ROOMS, MOST_FILES = 42, 24
MOST_LINES = 30  # of the docstring of a folder, with a table of modules

# Folders of modules of one kind, which their docstring need not name one by one: patches, commands, rules, networks.
ALIKE = {f"mixprec/{folder}" for folder in ("compat", "app/commands", "optimizer/rules", "recipes/models")}

# Base names that several folders share, as each computes the same on a level or a device of its own.
FAMILIES = """
    batch_norm batch_normalization convolution dropout elementwise embedding layout linear local_response_norm pooling
    recurrent
"""
LEVELS = {"links", "functions", "bridge", "backends.cpu", "backends.cuda", "backends.nchw"}


def _module(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(tree):
    """Yields what a module imports, also within functions and for type checkers."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"a relative import, line {node.lineno}"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@functools.cache
def edges():
    """Returns ``{module: modules of mixprec that it imports}``."""
    paths = {_module(path): path for path in (ROOT / "mixprec").rglob("*.py") if "models" not in path.parts}
    found = {}
    for name, path in paths.items():
        wanted = _imports(ast.parse(path.read_text()))
        known = {each if each in paths else each.rpartition(".")[0] for each in wanted}
        found[name] = {each for each in known if each in paths and each != name}
    return found


def unit(module):
    """The room of a line of :data:`FLOORS`: a package or module, of the application a package in it."""
    parts = module.split(".")
    return "mixprec" if module == "mixprec" else ".".join(parts[1 : 3 if parts[1] == "app" else 2])


@functools.cache
def floors():
    return {name: floor for floor, line in enumerate(FLOORS.split("\n")) for name in line.split()}


def test_every_package_has_a_floor():
    assert {unit(module) for module in edges()} == set(floors())


def test_imports_go_down():
    up = {
        f"{module} -> {other}"
        for module, others in edges().items()
        for other in others
        if unit(module) != unit(other) and floors()[unit(module)] <= floors()[unit(other)]
    }
    assert up == set()


STRANGERS = [
    *(("compat", "all"), ("bridge", "precision links optimizer rewrite"), ("optimizer", "rewrite")),
    *(("rewrite", "optimizer"), ("graph_capture", "rewrite"), ("data", "optimizer rewrite graph_capture")),
]


@pytest.mark.parametrize(("package", "others"), STRANGERS)
def test_packages_that_do_not_know_of_each_other(package, others):
    """Plain Chainer's part knows no mixed precision, wrapping no converting, and capturing none either."""
    others = set(floors()) - {package} if others == "all" else set(others.split())
    found = {f"{a} -> {b}" for a, bs in edges().items() for b in bs if unit(a) == package and unit(b) in others}
    assert found == set()


def test_a_base_name_names_one_module():
    """A search for a file by its name finds one, but of the families, where the folder says which."""
    paths = [path.relative_to(ROOT / "mixprec") for path in (ROOT / "mixprec").rglob("*.py")]
    folders = {}
    for path in paths:
        folders.setdefault(path.stem, set()).add(".".join(path.parts[:-1]))
    shared = {name: where for name, where in folders.items() if len(where) > 1 and not name.startswith("__")}
    assert set(shared) == set(FAMILIES.split())
    assert set().union(*shared.values()) <= LEVELS


def test_nothing_below_the_application_reads_a_config():
    application, libraries = set(APPLICATION.split()), set(GROUND.split()) | set(LIBRARY.split())
    found = {f"{a} -> {b}" for a, bs in edges().items() for b in bs if unit(a) in libraries and unit(b) in application}
    assert found == set()
    reads = re.compile(r"\bconfig\.\w+\.\w|:class:`~?mixprec\.app\.|import_module\([\"']mixprec\.app\b")
    below = [path for path in (ROOT / "mixprec").rglob("*.py") if unit(_module(path)) in libraries]
    assert {f"{path}: {match[0]}" for path in below for match in reads.finditer(path.read_text())} == set()


@functools.cache
def _files():
    """Returns ``{folder: number of Python files in it}``, also of links to folders."""
    found = {}
    for folder, _, names in os.walk(ROOT / "mixprec", followlinks=True):
        count = sum(name.endswith(".py") for name in names)
        if count:
            found[Path(folder).relative_to(ROOT).as_posix()] = count
    return found


def test_rooms_are_few():
    """Who needs one more merges two that are read together, or raises the number and says why."""
    loose = [path.stem for path in (ROOT / "mixprec").glob("*.py") if path.stem != "__init__"]
    assert len(_files()) + len(loose) <= MOST_ROOMS, sorted([*_files(), *loose])


def test_a_room_is_seen_at_a_glance():
    assert {folder: count for folder, count in _files().items() if count > MOST_FILES} == {}


@pytest.mark.parametrize("folder", sorted(_files()))
def test_a_folder_says_what_is_in_it(folder):
    """Its ``__init__`` has some lines on it, and names its modules in the order in which to read."""
    docstring = ast.get_docstring(ast.parse((ROOT / folder / "__init__.py").read_text())) or ""
    assert 1 <= len(docstring.splitlines()) <= MOST_LINES
    here = {p.stem for p in (ROOT / folder).iterdir() if p.suffix == ".py" or f"{folder}/{p.name}" in _files()}
    unnamed = {name for name in here if not name.startswith("__") and not re.search(rf"\b{name}\b", docstring)}
    assert not unnamed or folder in ALIKE


def test_lint_bans_the_names_of_the_face_inside_of_the_package():
    """There each name comes from its home, and ``import mixprec`` would go up."""
    banned = re.findall(r'^"mixprec\.(\w+)"\.msg', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert sorted(banned) == sorted(mixprec.__all__)


def test_there_is_no_circle():
    left = {module: set(others) for module, others in edges().items()}
    while free := [module for module, others in left.items() if not others & left.keys()]:
        for module in free:
            del left[module]
    assert not left, f"in a circle, or above one: {', '.join(sorted(left))}"

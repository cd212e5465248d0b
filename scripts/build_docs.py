#!/usr/bin/env python3
"""Builds the site from README, docs and the docstrings: `make docs`, into build/site.

    python scripts/build_docs.py [FOLDER]

The pages are copied with their links made to fit. Links to other files of the repository lead to MIXPREC_URL, its
address, or lose their target where that is not set. The navigation has the headings and lists of docs/README.md. A
page of the API reference is made for each module with public names. A warning of Sphinx or a dead link is an error.
"""

import html.parser
import importlib
import os
import pathlib
import pkgutil
import posixpath
import re
import sys
import tempfile
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from mixprec.app.commands import command_process

if __name__ == "__main__":
    command_process.begin()

import mixprec
from mixprec import patches
from mixprec.app.commands.command_line import Parser, first_line
from mixprec.base import VERSION

ROOT = pathlib.Path(__file__).resolve().parents[1]
_NAMES = {
    "README.md": "index.md",
    "README.ja.md": "index.ja.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples/README.md": "examples.md",
    "docs/README.md": "pages.md",
}
_LINK = re.compile(r"(!?)\[((?:[^\]\[]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_FENCED = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
_SETTINGS = {
    "project": "mixprec",
    "author": "the mixprec authors",
    "copyright": "2026, the mixprec authors",
    "version": VERSION,
    "release": VERSION,
    "root_doc": "index",
    "extensions": ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"],
    "html_theme": "furo",
    "html_title": f"mixprec {VERSION}",
    "html_show_sourcelink": False,
    "myst_heading_anchors": 5,
    "autodoc_default_options": {"members": True, "show-inheritance": True},
    "autodoc_typehints": "none",
    "napoleon_numpy_docstring": False,
    "napoleon_custom_sections": ["Order of a step"],
}


def main():
    parser = Parser(description=first_line(__doc__))
    parser.add_argument("folder", nargs="?", type=pathlib.Path, default=ROOT / "build/site", help="of the site")
    target = parser.parse_args().folder
    from sphinx.application import Sphinx  # of the extra docs

    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder)
        _write_pages(source)
        app = Sphinx(source, None, target, source / ".doctrees", "html", _SETTINGS, warningiserror=True)
        app.build()
    dead = _dead_links(target)
    for each in dead:
        print(f"dead link: {each}", file=sys.stderr)
    if app.statuscode == 0 and not dead:
        print(f"the site begins at {target / 'index.html'}")
    return app.statuscode or bool(dead)


def _write_pages(source):
    pages = {path: _NAMES.get(path, posixpath.basename(path)) for path in (*_NAMES, *_docs()) if (ROOT / path).exists()}
    for path, name in pages.items():
        parts = _FENCED.split((ROOT / path).read_text())  # every second one is a fenced block
        parts[::2] = (_LINK.sub(lambda match, path=path: _link(match, path, pages), part) for part in parts[::2])
        text = "".join(_with_one_title(parts))
        if name == "index.md":
            text += _navigation(pages)
        source.joinpath(name).write_text(text)
    for image in (*ROOT.glob("docs/**/*.[sp][vn]g"), *ROOT.glob("benchmarks/results/*.png")):
        copy = source / image.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(image.read_bytes())
    source.joinpath("api").mkdir()
    for name, told in _public_modules().items():
        text = f"{name}\n{'=' * len(name)}\n\n.. automodule:: {name}\n   :exclude-members: {', '.join(told)}\n"
        if name == "mixprec.patches":
            text += "\nReport\n------\n\n::\n\n" + re.sub("^", "    ", patches.report(), flags=re.MULTILINE)
        source.joinpath("api", f"{name}.rst").write_text(text)


def _with_one_title(parts):
    """Moves headings down a level from a second title on, so that the navigation lists a page once."""
    titles = 0

    def heading(match):
        nonlocal titles
        titles += match[0] == "# "
        return f"#{match[0]}" if titles > 1 else match[0]

    return [part if i % 2 else re.sub("^#+ ", heading, part, flags=re.MULTILINE) for i, part in enumerate(parts)]


def _docs():
    return sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/*.md"))


def _public_modules():
    """The modules with public names of their own, without the application, which has commands instead.

    Returns:
        A dict from the name of each to the list of names that the page of ``mixprec`` has already.
    """
    packages = (each.name for each in pkgutil.walk_packages(mixprec.__path__, "mixprec.") if each.ispkg)
    library = sorted(name for name in packages if not name.startswith("mixprec.app"))
    found = {"mixprec": []}
    for name in (*library, "mixprec.patches"):
        public = set(getattr(importlib.import_module(name), "__all__", ()))
        if public - set(mixprec.__all__):
            found[name] = sorted(public & set(mixprec.__all__))
    return found


def _link(match, page, pages):
    """The link of a page in the repository as it is on the site."""
    image, text, target = match.groups()
    address, _, anchor = target.partition("#")
    if not address or ":" in address:
        return match[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), address))
    if path in pages:
        return f"[{text}]({pages[path]}{'#' * bool(anchor)}{anchor})"
    if image:
        return f"![{text}]({path})"
    url = os.environ.get("MIXPREC_URL", "").rstrip("/")
    return f"[{text}]({url}/blob/main/{path})" if url else text


def _navigation(pages):
    """The tables of contents, which the site shows at the side: a caption for each heading of docs/README.md."""
    trees = {}
    for heading, body in re.findall(
        r"^## (.+)\n((?:(?!^## ).*\n)*)", (ROOT / "docs/README.md").read_text(), re.MULTILINE
    ):
        linked = (posixpath.normpath(f"docs/{name}") for name in re.findall(r"\]\(([^)#\s]+\.md)\)", body))
        trees[heading] = [pages[path] for path in dict.fromkeys(linked) if path in pages and path != "README.md"]
    listed = {name for names in trees.values() for name in names}
    trees["API"] = [f"api/{name}.rst" for name in _public_modules()]
    trees["Project"] = [name for name in pages.values() if name not in listed | {"index.md"}]
    tree = "\n```{{toctree}}\n:hidden:\n:caption: {}\n\n{}\n```\n"
    return "".join(tree.format(caption, "\n".join(names)) for caption, names in trees.items())


class _Links(html.parser.HTMLParser):
    """What a page links to, and the anchors that it has."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors = set(), {""}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.anchors.add(attrs.get("id", ""))
        self.links.update(attrs[name] for name in ("href", "src") if attrs.get(name))


def _dead_links(target):
    """The links within the site that lead nowhere, as texts."""
    pages = {path.resolve(): _Links(path.read_text()) for path in target.rglob("*.html")}
    dead = []
    for path, page in pages.items():
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            there = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            anchor = urllib.parse.unquote(parts.fragment)
            if not there.exists() or (there in pages and anchor not in pages[there].anchors):
                dead.append(f"{path.relative_to(target.resolve())}: {link}")
    return sorted(dead)


if __name__ == "__main__":
    sys.exit(command_process.run(main))

"""Counts the code lines of each top folder, and fails if one has more than .ci/code_lines.txt allows.

A code line is a line of Python with code on it: blank lines, comments and docstrings do not count, so leaving out
words gains nothing. `make lint` and the hooks of pre-commit run this. Who needs more lines raises the number in the
same commit, and says why in its message.
"""

import ast
import io
import pathlib
import subprocess
import sys
import tokenize

ROOT = pathlib.Path(__file__).resolve().parents[1]
TABLE = pathlib.Path(".ci") / "code_lines.txt"
_NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(source):
    """Returns the number of code lines of a Python source, as bytes."""
    lines = set()
    for token in tokenize.tokenize(io.BytesIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            lines.difference_update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(lines)


def counted(root):
    """Returns a dict from each top folder to the code lines of its files, those that git knows or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*/*.py"]
    names = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.splitlines()
    found = {}
    for path in map(pathlib.Path, names):
        if (root / path).exists():
            found[path.parts[0]] = found.get(path.parts[0], 0) + code_lines((root / path).read_bytes())
    return found


def main(root=ROOT):
    """Prints the table; returns 1 if a folder has more lines than are allowed, or has no row, 0 otherwise."""
    allowed = {name: int(number) for name, number in map(str.split, (root / TABLE).read_text().splitlines())}
    status = 0
    for folder, lines in sorted(counted(root).items()):
        limit = allowed.get(folder, 0)
        print(f"{folder:<12}{lines:>7} of {limit:>6} code lines")
        if lines > limit:
            status = 1
            print(
                f"{TABLE}: {folder} has {lines - limit} code lines more than its {limit}; take some away, or raise the "
                "number in this commit and say why in its message"
            )
    return status


if __name__ == "__main__":
    sys.exit(main())

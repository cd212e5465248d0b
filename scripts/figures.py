#!/usr/bin/env python3
"""Writes the tables of results in README.md and README.ja.md from benchmarks/figures.yaml, which a new record changes.

python scripts/figures.py
"""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from mixprec.app.commands import command_process

if __name__ == "__main__":
    command_process.begin()

import yaml

from mixprec.app.commands.command_line import Parser, first_line

ROOT = pathlib.Path(__file__).resolve().parents[1]
HEADS = {
    "README.md": ("en", "Measured | mixprec | Beside it | Command, machine"),
    "README.ja.md": ("ja", "測定 | mixprec | 比較対象 | コマンド、マシン"),
}
_TABLE = re.compile(r"(?<=<!-- figures -->\n).*?(?=<!-- end of figures -->)", re.DOTALL)


def main():
    Parser(description=first_line(__doc__)).parse_args()
    for name in HEADS:
        path = ROOT / name
        path.write_text(filled(name, path.read_text()))


def filled(name, text):
    """Returns the text of a README with the table made anew."""
    language, head = HEADS[name]
    rows = [f"| {head} |", "|---|---|---|---|"]
    for each in yaml.safe_load((ROOT / "benchmarks/figures.yaml").read_text()):
        source = f"`{each['command']}`, {each['machine']}"
        rows.append(f"| [{each[language]}]({each['page']}) | {each['value']} | {each['peer']} | {source} |")
    return _TABLE.sub(lambda _: "".join(f"{row}\n" for row in rows), text, count=1)


if __name__ == "__main__":
    sys.exit(command_process.run(main))

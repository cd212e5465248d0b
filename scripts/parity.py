#!/usr/bin/env python
"""Trains in FP16 and in FP32 with the same seeds, and two negative controls, and compares the accuracies.

python scripts/parity.py [--seeds 5] [--control-seeds 5] [--jobs 2] [--out results/parity] [--json FILE] [--plot FILE]

Runs that are done are kept, and those that were killed go on from their last snapshots: start it again.
"""

import argparse
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from mixprec import command_process, working_folder

if __name__ == "__main__":
    command_process.begin()  # before the seconds that the imports below take

from benchmarks import parity_no_masters, parity_plot, parity_study
from mixprec import files
from mixprec.command_line import Parser, first_line, one_line, path
from mixprec.config import ConfigError
from models import MODELS

CONFIG = pathlib.Path(__file__).resolve().parents[1] / "configs" / "textures.yaml"
_MOST = 1000  # seeds, or runs at the same time


def _positive(text, least=1):
    number = int(text)
    if not least <= number <= _MOST:
        raise argparse.ArgumentTypeError(f"found {number}, expected {least} to {_MOST}")
    return number


def _count(text):
    return _positive(text, least=0)


def main(argv=None):
    """Runs the study.

    Args:
        argv: arguments; ``None`` for those of the process.

    Returns:
        int: exit code.
    """
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["--without-masters"]:  # how the study starts a run of its second control
        return parity_no_masters.main(argv[1:], MODELS)
    parser = Parser(description=first_line(__doc__))
    parser.add_argument("--config", default=working_folder.shown(CONFIG), metavar="FILE", help="default: %(default)s")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="overrides a key for all runs")
    parser.add_argument("--seeds", type=_positive, default=5, help="of FP16 and FP32 (default: %(default)s)")
    parser.add_argument("--control-seeds", type=_count, metavar="SEEDS", help="of the controls (default: as many)")
    parser.add_argument("--jobs", type=_positive, default=2, help="runs at the same time (default: %(default)s)")
    parser.add_argument(
        "--out",
        type=path("a folder"),
        default="results/parity",
        metavar="DIR",
        help="of the runs (default: %(default)s)",
    )
    parser.add_argument(
        "--json", type=path("a file"), metavar="FILE", help="write settings, machine, runs and comparisons there"
    )
    parser.add_argument("--plot", type=path("a file"), metavar="FILE", help="draw differences and accuracies there")
    args = parser.parse_args(argv)
    study = {"config": args.config, "settings": args.set, "seeds": args.seeds}
    study["control_seeds"] = args.seeds if args.control_seeds is None else args.control_seeds
    try:
        runs = parity_study.measure(**study, networks=MODELS, jobs=args.jobs, out=args.out)
    except (parity_study.ParityError, ConfigError) as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from the last snapshots", file=sys.stderr)
        return 130
    study["overrides"] = study.pop("settings")
    record = parity_study.as_json(runs, **study)
    print(parity_study.table(record))
    if args.json:
        files.write_text(args.json, json.dumps(record, indent=1) + "\n")
    if args.plot:
        parity_plot.save(args.plot, record)
    return 0


if __name__ == "__main__":
    sys.exit(command_process.run(main))

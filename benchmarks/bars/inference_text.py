"""The section of the page of results about inference, from a record of :mod:`benchmarks.inference`."""

import statistics


def section(record):
    """Yields the parts of the section of a page of Markdown about a record, but for its heading and its facts."""
    settings = record["settings"]
    yield (
        "Random weights. Chainer computes with train off; onnxruntime has the files that `mixprec.export` makes, INT8 "
        "as for CPUs. An export in FP32, FP16 and INT8 needs at most "
        f"{record['export_peak'] / 1e6:,.0f} MB of memory.\n\n"
    )
    batches = settings["batch"]
    yield f"| | {' | '.join(f'batch {batch}' for batch in batches)} | MB |\n|{'---|' * (len(batches) + 2)}\n"
    rows = {}
    for row in record["rows"]:
        rows.setdefault(row["name"], []).append(row)
    for name, mine in rows.items():
        speeds = [f"{statistics.median(row['speeds']):.3g}" for row in mine]
        size = "" if mine[0]["size"] is None else f"{mine[0]['size'] / 1e6:.1f}"
        yield f"| {' | '.join([name, *speeds, size])} |\n"

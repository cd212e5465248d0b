"""Records of the bars for tests. No number was measured."""

GPU_DEVICE = "GPU 0 of 1: NVIDIA H200, compute capability 9.0, 139 GiB"
MADE = {"date": "2026-11-22T15:22:09+00:00", "python": "3.11.7", "numpy": "2.4.6", "chainer": "7.8.1"}
MADE |= {"mixprec": "0.1.0", "torch": "2.13.0", "commit": "59a7725a0d52", "cpu": "a CPU of the tests"}


def measured(batch, name, group, rate, **others):
    """A row of three blocks around ``rate`` images a second, which may be changed by key."""
    row = {
        "batch": batch,
        "name": name,
        "group": group,
        "blocks": [rate, 0.99 * rate, 1.02 * rate],
        "median": rate,
        "minimum": 0.99 * rate,
        "maximum": 1.02 * rate,
        "milliseconds": batch / rate * 1e3,
        **dict.fromkeys(("host_milliseconds", "ratio", "launches", "syncs", "peak")),
        "reason": "",
        "note": "",
    }
    return row | others


def failed(batch, name, group, reason):
    """A row without numbers."""
    numbers = dict.fromkeys(("blocks", "median", "minimum", "maximum", "milliseconds"))
    return measured(batch, name, group, 1.0) | numbers | {"reason": reason}


def cpu(**changed):
    """A run on a CPU: one batch size; one row was not measured, and two are the same step."""
    rows = [
        measured(8, "plain Chainer FP32", "plain", 20.0, ratio=1.0, peak=10**9),
        failed(8, "plain Chainer FP32, cuDNN", "plain", "needs a GPU"),
        measured(8, "fp16.yaml", "config", 16.0, ratio=0.8, peak=10**9),
        measured(8, "dali.yaml", "config", 16.0, ratio=0.8, peak=10**9, note="the same step as fp16.yaml"),
        measured(8, "static_graph.yaml, float32", "precision", 40.0, ratio=2.0, peak=10**9),
        measured(8, "static_graph.yaml, no fusion", "ablation", 50.0, ratio=2.5, peak=10**9),
        measured(8, "PyTorch FP32", "peer", 70.0, ratio=3.5, peak=10**9),
        measured(8, "PyTorch FP32, channels_last", "peer", 85.5, ratio=4.275, peak=10**9),
    ]
    return _record("cpu", rows, "resnet18", 64, "CPU: no NVIDIA driver is installed") | changed


def gpu(*rows, **changed):
    """A run on a GPU: two batch sizes."""
    numbers = {"host_milliseconds": 0.25, "launches": 1008, "syncs": 0, "peak": 256 * 10**8}
    own = [measured(batch, "static_graph.yaml", "config", 32.0 * batch, **numbers) for batch in (32, 256)]
    own.append(failed(256, "static_graph.yaml, no fusion", "ablation", "block 1 of 5: OutOfMemoryError: 2 GiB"))
    return _record("gpu", list(rows or own), "resnet50", 224, GPU_DEVICE) | changed


def _record(kind, rows, arch, size, device):
    settings = {"arch": arch, "batch": list(dict.fromkeys(row["batch"] for row in rows)), "size": size, "blocks": 3}
    settings |= {"block_steps": 10, "limit": 300.0, "minutes": None, "peer": "pytorch", "rows": None}
    return {
        "format": "mixprec bars 1",
        "complete": True,
        "settings": settings | {"prepare_limit": None},
        **MADE,
        "device": device,
        "kind": kind,
        "versions": {"NumPy": "2.4.6", "CUDA driver": "13.0"},
        "threads": 2,
        "rows": rows,
    }

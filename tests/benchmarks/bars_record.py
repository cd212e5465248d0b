"""Records of the bars for tests. No number was measured."""

import copy

OUT_OF_MEMORY = "block 1 of 5: OutOfMemoryError: Out of memory allocating 1,234,567,890 bytes."
NO_COMPILER = "PyTorch's compiler needs g++ | none was found in PATH, and it says so in many words"
CONFIGS = ("fp32.yaml", "fp16.yaml", "dali.yaml", "nhwc_fused_batched.yaml", "static_graph.yaml")
PRECISIONS = ("bfloat16", "float32", "TF32")
ABLATIONS = ("layout nchw", "no fusion", "no batched update", "no graph", "no autotuning", "no loss scale")
PEERS = ("FP32", "FP32, channels_last", "AMP", "AMP, channels_last", "AMP, channels_last, torch.compile", "CUDA graph")
BASE = {"gpu": "plain Chainer FP32, cuDNN", "cpu": "plain Chainer FP32"}
GPU_DEVICE = "GPU 0 of 1: NVIDIA H200, compute capability 9.0, 139 GiB"
COUNTS = [
    {
        "name": "nhwc_fused_batched.yaml",
        "launches": 1001,
        "graph_launches": 0,
        "uploads": 4,
        "syncs": 0,
        "conversions": 1,
        "functions": 2,
        "note": "",
    },
    {
        "name": "fp32.yaml",
        "launches": None,
        "graph_launches": 0,
        "uploads": 3,
        "syncs": 0,
        "conversions": 0,
        "functions": 405,
        "note": "Chainer's own functions | launches unknown",
    },
    {
        "name": "broken.yaml",
        **dict.fromkeys(("launches", "graph_launches", "uploads", "syncs", "conversions", "functions")),
        "note": "ValueError: no such key",
    },
]


def measured(batch, name, group, rate, **others):
    """A row of three blocks around ``rate`` images a second, which may be changed by key."""
    blocks = [rate, 0.99 * rate, 1.02 * rate]
    row = {
        "batch": batch,
        "name": name,
        "group": group,
        "blocks": blocks,
        "median": blocks[0],
        "minimum": blocks[1],
        "maximum": blocks[2],
        "milliseconds": batch / rate * 1e3,
        **dict.fromkeys(("host_milliseconds", "ratio", "launches", "syncs", "peak", "roofline")),
        "reason": "",
        "note": "",
    }
    return row | others


def failed(batch, name, group, reason):
    """A row without numbers."""
    row = measured(batch, name, group, 1.0)
    numbers = ("blocks", "median", "minimum", "maximum", "milliseconds")
    return row | dict.fromkeys(numbers) | {"reason": reason}


def cpu():
    """A run on a CPU: one batch size, 14 rows, two of which are the same step."""
    rates = {"plain Chainer FP32": 20.0, "fp32.yaml": 19.0, "fp16.yaml": 16.0}
    rates |= {"nhwc_fused_batched.yaml": 36.0, "static_graph.yaml": 36.5}
    rates |= {"static_graph.yaml, bfloat16": 30.0, "static_graph.yaml, float32": 40.0}
    rates |= {"static_graph.yaml, no fusion": 31.0, "static_graph.yaml, layout nchw": 17.0}
    rates |= {"PyTorch FP32": 70.0, "PyTorch FP32, channels_last": 85.5}
    rows = [measured(8, name, _group(name), rate, ratio=rate / 20, peak=10**9) for name, rate in rates.items()]
    rows.insert(1, failed(8, "plain Chainer FP32, cuDNN", "plain", "needs a GPU"))
    same = {"ratio": 0.8, "peak": 10**9, "note": "the same step as fp16.yaml"}
    rows.insert(4, measured(8, "dali.yaml", "config", 16.0, **same))
    rows.append(failed(8, "PyTorch FP32, torch.compile", "peer", NO_COMPILER))
    return _record("cpu", rows, arch="resnet18", size=64, batch=[8], device="CPU: no NVIDIA driver is installed")


def gpu(device=GPU_DEVICE):
    """A run on a GPU: four batch sizes, 20 rows; plain Chainer and the last graph run out of memory at large ones."""
    rows = [row for batch in (32, 64, 128, 256) for row in _gpu_rows(batch)]
    return _record("gpu", rows, arch="resnet50", size=224, batch=[32, 64, 128, 256], device=device)


def of(record, batch, name):
    """The row of that name."""
    (row,) = (row for row in record["rows"] if (row["batch"], row["name"]) == (batch, name))
    return row


def _gpu_rows(batch):
    full = batch / (batch + 25)  # small batches are slower
    rows = [
        failed(batch, "plain Chainer FP32, no cuDNN", "plain", OUT_OF_MEMORY)
        if batch > 64
        else measured(batch, "plain Chainer FP32, no cuDNN", "plain", 210 * full, ratio=0.25, launches=2411, syncs=3)
    ]
    plain = 850 * full
    rows.append(measured(batch, BASE["gpu"], "plain", plain, ratio=1.0, launches=1522, syncs=1, roofline=0.4))
    rows.append(failed(batch, "plain Chainer mixed16", "plain", "ValueError: Chainer says a lot about what it lacks"))
    names = [*CONFIGS, *(f"static_graph.yaml, {name}" for name in (*PRECISIONS, *ABLATIONS))]
    for place, name in enumerate(names):
        if batch == 256 and name == "static_graph.yaml, no fusion":
            rows.append(failed(batch, name, _group(name), OUT_OF_MEMORY))
            continue
        rate = full * (9000 if name == "static_graph.yaml" else 800 + 1100 * place / 2)
        numbers = {"ratio": rate / plain, "launches": 8 if "static" in name else 1001.5, "syncs": 0}
        numbers |= {"host_milliseconds": 0.25, "peak": batch * 10**8, "roofline": 0.9}
        rows.append(measured(batch, name, _group(name), rate, **numbers))
    for place, name in enumerate(PEERS):
        rate = full * (1400 + 1000 * place)
        rows.append(measured(batch, f"PyTorch {name}", "peer", rate, ratio=rate / plain, peak=batch * 10**8))
    return rows


def _group(name):
    if name.startswith(("plain", "PyTorch")):
        return "plain" if name.startswith("plain") else "peer"
    change = name.partition(", ")[2]
    return "config" if not change else "precision" if change in PRECISIONS else "ablation"


def _record(kind, rows, *, arch, size, batch, device):
    versions = {"Python": "3.11.7", "NumPy": "2.4.6", "Chainer": "7.8.1"}
    rates = {"bandwidth": 2.5e10, "flops": {"float32": 1.5e11, "float16": 1.5e11, "bfloat16": 1.5e11}}
    if kind == "gpu":
        versions |= {"CuPy": "14.2.0", "CUDA driver": "13.0", "cuDNN": "9.22.0"}
        rates = {"bandwidth": 4.3e12, "flops": {"float32": 5.1e13, "float16": 7.9e14, "bfloat16": 7.9e14}}
    return {
        "format": "mixprec bars 1",
        "complete": True,
        "settings": {
            "arch": arch,
            "size": size,
            "batch": batch,
            "blocks": 3,
            "block_steps": 10,
            "limit": 300.0,
            "peer": "pytorch",
            "rows": None,
            "minutes": None,
        },
        "date": "2026-11-22T15:22:09+00:00",
        "python": "3.11.7",
        "numpy": "2.4.6",
        "chainer": "7.8.1",
        "mixprec": "0.1.0",
        "torch": "2.11.0",
        "commit": "59a7725a0d52",
        "cpu": "a CPU of the tests",
        "device": device,
        "kind": kind,
        "driver": versions.get("CUDA driver"),
        "versions": versions,
        "threads": 2,
        "rates": rates,
        "rows": rows,
        "counts": copy.deepcopy(COUNTS),
    }

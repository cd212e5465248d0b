"""Results folders that no training has made."""

import json

CONFIG = "model:\n  arch: resnet8\nprecision:\n  compute: float16\ntraining:\n  epochs: 10\n"


def make_run(folder, *, accuracies=(0.5, 0.9, 0.8), status=None, config=CONFIG):
    """Writes the files of a run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(config)
    entries = [
        (
            {"iteration": 10 * number, "epoch": number, "elapsed_time": float(number)}
            | {"validation/main/accuracy": accuracy, "images/s": 100.0 + number, "loss_scale": 65536.0}
            | {"skipped": number, "lr": 0.1, "main/loss": 1 / (1 + number)}
        )
        for number, accuracy in enumerate(accuracies, 1)
    ]
    (folder / "log.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    if status is not None:
        (folder / "status.json").write_text(json.dumps(status))
    return folder

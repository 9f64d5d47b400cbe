"""Time to 99.0% on MNIST, ours and PyTorch's, seed by seed in one run, both with their best schedules.

On both sides the clock counts training only, both cores are free for the one that runs, and the test set is looked at
every quarter pass. Ours is `adamctl train examples/mnist.toml` with every role on this machine.

    python benchmarks/mnist_time_to_accuracy.py --data DIR [--seeds 3] [--peer-python PYTHON_WITH_TORCH] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from printed_object import ADAMCTL, printed_object

from adamctl.bench.script import run_script

ROOT = Path(__file__).resolve().parent.parent
TARGET = "0.99"


def ours(data: str, seed: int, flags: list[str]) -> dict[str, Any]:
    """Trains `examples/mnist.toml` once and returns its result object."""
    with tempfile.TemporaryDirectory() as runs:
        command = [*ADAMCTL, "train", str(ROOT / "examples" / "mnist.toml"), "--data", data]
        command += ["--seed", str(seed), "--json", "--run-dir", runs, *flags]
        return printed_object(command)


def peer(python: str, data: str, seed: int) -> dict[str, Any]:
    """Trains the same network with PyTorch once and returns its result object."""
    command = [python, str(ROOT / "benchmarks" / "peers" / "torch_mnist.py"), "--data", str(Path(data) / "mnist")]
    command += ["--first-seed", str(seed), "--seeds", "1", "--json"]
    return printed_object(command)


def seconds(result: dict[str, Any]) -> float:
    """Returns the training seconds to the target, infinity if it was not reached."""
    reached = result["time_to"].get(TARGET)
    return float("inf") if reached is None else float(reached)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder that holds mnist/")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--peer-python", default=sys.executable, help="an interpreter that has PyTorch")
    parser.add_argument("--json", action="store_true")
    options, flags = parser.parse_known_args()
    rows = []
    for seed in range(1, options.seeds + 1):
        mine, theirs = ours(options.data, seed, flags), peer(options.peer_python, options.data, seed)
        rows.append(
            {
                "seed": seed,
                "seconds": seconds(mine),
                "best_test_top1": mine["best_test_top1"],
                "images_per_s": mine["images_per_s"],
                "peer_seconds": seconds(theirs),
                "peer_best_test_top1": theirs["best_test_top1"],
                "peer_images_per_s": theirs["images_per_s"],
            }
        )
        if not options.json:
            print(" ".join(f"{key}={value:.4g}" for key, value in rows[-1].items()), flush=True)
    median = statistics.median(row["seconds"] for row in rows)
    peer_median = statistics.median(row["peer_seconds"] for row in rows)
    summary = {"median_seconds": median, "peer_median_seconds": peer_median, "ratio_vs_torch": median / peer_median}
    if options.json:
        report = {"schema_version": 1, "bench": "mnist-time-to-accuracy", "target": float(TARGET), "results": rows}
        print(json.dumps(report | summary, indent=2))
    else:
        print(f"median to {TARGET}: ours {median:.2f} s, PyTorch {peer_median:.2f} s, ratio {median / peer_median:.2f}")


if __name__ == "__main__":
    run_script(main)

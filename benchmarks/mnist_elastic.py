"""Test error on MNIST with affine and elastic distortions, ours and PyTorch's, seed by seed.

Ours is `adamctl train examples/mnist_elastic.toml` with every role on this machine. PyTorch trains the same network for
as many passes on the same variants in the same order: those that our data servers make of this seed. It has momentum
and a one-cycle schedule, as in `peers/torch_mnist.py`, with half the peak rate, since it trains for longer, and with as
much weight decay as ours. The error
that counts is that of the last evaluation, after the last pass.

    python benchmarks/mnist_elastic.py --data DIR [--seeds 5] [--peer-python PYTHON_WITH_TORCH] [--passes N]
        [--side ours --side torch] [--results FILE]

Prints a JSON object for each run as it ends, and adds it to FILE; then the summary of all runs in FILE, or of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from printed_object import ADAMCTL, printed_object

from adamctl.bench.peer import PeerProcess, require
from adamctl.bench.script import run_script
from adamctl.config.experiment import Experiment
from adamctl.config.load import load_experiment, parse_setting
from adamctl.roles.data.catalogue.catalogue import find_source
from adamctl.roles.data.core import FILE_ORDER, Range
from adamctl.roles.data.readers import open_source
from adamctl.roles.data.sets.open_data_set import OpenDataSet

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "mnist_elastic.toml"
PEER = ROOT / "benchmarks" / "peers" / "torch_variants.py"
PEER_BATCH, PEER_LR = 64, 0.05
PEER_WEIGHT_DECAY = 3e-4
"""Weights shrink in a pass as ours do: lr / (1 - momentum) * decay / batch is that of the example."""
CHUNK_EXAMPLES = 5000
ANSWER_S = 3600.0
SIDES = ("ours", "torch")


def ours(data: str, seed: int, passes: int) -> dict[str, Any]:
    """Trains the example once, and returns what counts of its result."""
    with tempfile.TemporaryDirectory() as runs:
        command = [*ADAMCTL, "train", str(EXAMPLE), "--data", data, "--seed", str(seed)]
        command += ["--passes", str(passes), "--json", "--run-dir", runs]
        result = printed_object(command)
    return {
        "error": 1 - result["test_top1"], "least_error": 1 - result["best_test_top1"],
        "train_seconds": result["train_seconds"], "waiting_share": result["waiting_share"],
    }  # fmt: skip


class Variants:
    """The passes of our data servers as files, in the order in which a worker gets them."""

    def __init__(self, experiment: Experiment, data: str, folder: Path) -> None:
        config = experiment.data
        source = open_source(config, find_source(config, (data,)), experiment.model.input)
        self.dataset = OpenDataSet("variants", config, source, experiment.seed, 1 << 30)
        self.folder = folder

    def write(self, split: str, pass_number: int) -> dict[str, str]:
        """Returns the names of the files with a pass over a split."""
        count, shape = self.dataset.examples[split], self.dataset.source.example_shape
        form = self.dataset.form
        images, labels = np.empty((count, form.elements), form.numpy_dtype), np.empty(count, np.int32)
        for start in range(0, count, CHUNK_EXAMPLES):
            stop = min(start + CHUNK_EXAMPLES, count)
            wanted = Range(split, pass_number, start, stop)
            self.dataset.gather(wanted, images[start:stop], labels[start:stop])
        files = {what: str(self.folder / f"{what}_{split}_{pass_number % 2}.npy") for what in ("images", "labels")}
        scaled = np.empty((count, *shape), np.float32)
        self.dataset.scaling.write(images.reshape(scaled.shape), scaled)
        np.save(files["images"], scaled)
        np.save(files["labels"], labels)
        return files


def torchs(python: str, data: str, seed: int, passes: int, threads: int) -> dict[str, Any]:
    """Trains PyTorch's network on our variants once; the next pass is made while one is trained on."""
    settings = [parse_setting(f"seed={seed}"), parse_setting(f"train.passes={passes}")]
    experiment = load_experiment(EXAMPLE, settings=settings).experiment
    with (
        tempfile.TemporaryDirectory() as folder,
        PeerProcess(python, str(PEER), threads) as peer,
        ThreadPoolExecutor(1) as pool,
    ):
        variants = Variants(experiment, data, Path(folder))
        steps = -(-variants.dataset.examples["train"] // PEER_BATCH)
        begin = {"seed": seed, "passes": passes, "steps": steps, "batch": PEER_BATCH, "lr": PEER_LR}
        begin |= {"weight_decay": PEER_WEIGHT_DECAY, "threads": threads}
        peer.ask({"do": "begin", **begin}, ANSWER_S)
        test = variants.write("test", FILE_ORDER)
        made, errors, seconds = pool.submit(variants.write, "train", 0), [], 0.0
        for pass_number in range(passes):
            files = made.result()
            if pass_number + 1 < passes:
                made = pool.submit(variants.write, "train", pass_number + 1)
            seconds += peer.ask({"do": "train", **files}, ANSWER_S)["seconds"]
            errors.append(1 - peer.ask({"do": "test", **test}, ANSWER_S)["top1"])
    return {"error": errors[-1], "least_error": min(errors), "train_seconds": seconds}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns mean and least of the last errors of each side, and how far ours is above PyTorch's, in points."""
    found: dict[str, Any] = {}
    for side in SIDES:
        errors = [row["error"] for row in rows if row["side"] == side]
        if errors:
            found[side] = {
                "runs": len(errors), "mean_error": statistics.mean(errors), "best_error": min(errors),
                "passes": sorted({row["passes"] for row in rows if row["side"] == side}),
            }  # fmt: skip
    if len(found) == len(SIDES):
        found["points_above_torch"] = 100 * (found["ours"]["mean_error"] - found["torch"]["mean_error"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder that holds mnist/")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--passes", type=int, help="default: the example's")
    parser.add_argument("--side", action="append", choices=SIDES, help="default: both")
    parser.add_argument("--peer-python", default=sys.executable, help="an interpreter that has PyTorch")
    parser.add_argument(
        "--peer-threads", type=int, default=1, help="more are slower where other programs are busy; default: 1"
    )
    parser.add_argument("--results", type=Path, help="a file of JSON lines, which earlier runs may have begun")
    options = parser.parse_args()
    passes = options.passes or load_experiment(EXAMPLE).experiment.train.passes
    sides = options.side or SIDES
    if "torch" in sides:
        require(options.peer_python, "torch")
    rows = []
    if options.results is not None and options.results.exists():
        rows = [msgspec.json.decode(line) for line in options.results.read_bytes().splitlines()]
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for side in sides:
            found = (
                ours(options.data, seed, passes)
                if side == "ours"
                else torchs(options.peer_python, options.data, seed, passes, options.peer_threads)
            )
            rows.append({"side": side, "seed": seed, "passes": passes, **found})
            print(json.dumps(rows[-1]), flush=True)
            if options.results is not None:
                with options.results.open("a") as stream:
                    stream.write(json.dumps(rows[-1]) + "\n")
    print(json.dumps(summary(rows), indent=2))


if __name__ == "__main__":
    run_script(main)

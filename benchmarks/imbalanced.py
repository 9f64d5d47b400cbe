"""What balanced sampling and class weights do for classes with few examples: MNIST with few training images of 5 to 9.

Of the first training images all of the digits 0 to 4 are kept and one in so many of the others; the test part is whole.
Each way trains the same small network from the same seeds, and `adamctl eval --confusion` measures it: top-1, balanced
accuracy, and the mean recall of the common and of the rare digits, means over all seeds.

    python benchmarks/imbalanced.py --data DIR [--keep-one-in 50] [--examples 20000] [--seeds 3] [--passes 10]
        [--ways plain,sampling,weights,roots] [--json]

`sampling` is data.sampling = "balanced", `weights` is train.class_weights = "balanced"; `roots` draws each class in
proportion to the root of its examples.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from printed_object import ADAMCTL, printed_object

from adamctl.bench.script import run_script
from adamctl.config.data import DataConfig
from adamctl.roles.data.catalogue.catalogue import find_source
from adamctl.roles.data.readers import open_source
from adamctl.roles.data.readers.source import FileSplit

COMMON = range(5)
RARE = range(5, 10)
FIGURES = ("top1", "balanced_accuracy", "recall_common", "recall_rare", "precision_rare", "loss")


def read_mnist(data: str, split: FileSplit) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Returns images [n, 28, 28, 1] and labels [n]."""
    config = DataConfig(format="idx", source="mnist", search=(data,))
    source = open_source(config, find_source(config), (28, 28, 1))
    labels = source.labels(split)
    images = np.empty((len(labels), 28, 28, 1), np.uint8)
    source.load(split, np.arange(len(labels)), images)
    return images, labels


def write_archive(data: str, path: Path, examples: int, keep_one_in: int) -> list[int]:
    """Writes the uneven set; returns how many training images each digit has."""
    images, labels = (values[:examples] for values in read_mnist(data, "train"))
    tested, right = read_mnist(data, "test")
    seen = np.zeros(10, np.int64)
    kept = np.zeros(len(labels), np.bool_)
    for row, label in enumerate(labels):
        kept[row] = label in COMMON or seen[label] % keep_one_in == 0
        seen[label] += 1
    np.savez(path, x_train=images[kept], y_train=labels[kept], x_test=tested, y_test=right)
    counts: list[int] = np.bincount(labels[kept], minlength=10).tolist()
    return counts


def settings_of(way: str, counts: list[int]) -> list[str]:
    """Returns what a way sets."""
    roots = {str(digit): round(count**-0.5, 6) for digit, count in enumerate(counts)}
    table = ", ".join(f'"{digit}" = {weight}' for digit, weight in roots.items())
    return {
        "plain": [],
        "sampling": ["data.sampling=balanced"],
        "weights": ["train.class_weights=balanced"],
        "roots": [f"data.sampling={{ {table} }}"],
    }[way]


def experiment(path: Path, passes: int) -> str:
    """Returns the experiment file."""
    return f"""
name = "imbalanced"
[data]
format = "npz"
source = "{path}"
[model]
input = [28, 28, 1]
layers = [
    {{ type = "conv2d", filters = 10, kernel = 5, activation = "relu" }},
    {{ type = "maxpool2d", size = 2 }},
    {{ type = "dense", units = 100, activation = "relu" }},
    {{ type = "softmax", units = 10 }},
]
[optimizer]
lr = 0.05
schedule = {{ type = "one_cycle" }}
[train]
passes = {passes}
batch = 32
evaluate_every = {passes}
[cluster]
workers = 1
threads = 1
"""


def measured(file: Path, settings: list[str], seed: int) -> dict[str, Any]:
    """Trains once and returns the figures of the test part."""
    with tempfile.TemporaryDirectory() as runs:
        keys = [part for setting in settings for part in ("--set", setting)]
        printed_object([*ADAMCTL, "train", str(file), "--seed", str(seed), "--run-dir", runs, "--json", *keys])
        found = printed_object([*ADAMCTL, "eval", "imbalanced", "--run-dir", runs, "--confusion", "--json"])
    classes = found["confusion"]["classes"]
    return {
        "top1": found["top1"],
        "balanced_accuracy": found["confusion"]["balanced_accuracy"],
        "recall_common": statistics.fmean(classes[digit]["recall"] for digit in COMMON),
        "recall_rare": statistics.fmean(classes[digit]["recall"] for digit in RARE),
        "precision_rare": statistics.fmean(classes[digit]["precision"] or 0.0 for digit in RARE),
        "loss": found["loss"],
        "recalls": [classes[digit]["recall"] for digit in range(10)],
    }


def summary(way: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the row of one way: means over its runs, and the mean recall of each digit."""
    row: dict[str, Any] = {"way": way, "runs": len(runs)}
    row |= {key: round(statistics.fmean(run[key] for run in runs), 4) for key in FIGURES}
    columns = zip(*(run["recalls"] for run in runs), strict=True)
    return row | {"recalls": [round(statistics.fmean(column), 3) for column in columns]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder that holds mnist/")
    parser.add_argument("--keep-one-in", type=int, default=50)
    parser.add_argument("--examples", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--passes", type=int, default=10)
    parser.add_argument("--ways", default="plain,sampling,weights,roots")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        path, file = Path(scratch) / "uneven.npz", Path(scratch) / "imbalanced.toml"
        counts = write_archive(options.data, path, options.examples, options.keep_one_in)
        file.write_text(experiment(path, options.passes))
        for way in options.ways.split(","):
            settings = settings_of(way, counts)
            rows.append(summary(way, [measured(file, settings, seed) for seed in range(1, options.seeds + 1)]))
            if not options.json:
                print(" ".join(f"{key}={value}" for key, value in rows[-1].items()), flush=True)
    if options.json:
        found = {"schema_version": 1, "bench": "imbalanced", "training_images": counts, "results": rows}
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    run_script(main)

"""The cost of a store for training: the same run with and without it, one after the other.

`adamctl train` with all of its processes trains a dense model of 64 MB on the digits that come with scikit-learn; the
parameter server either keeps nothing on disk, or flushes with the given loss window. Every parameter changes with
every push, so every window writes the whole model to disk. Pairs of runs follow each other, with alternating order,
and the median of the pairs' ratios is reported. On a shared machine, whose noise exceeds the effect, the processor time
of all processes is more telling: the extra time of the runs with a store.
"""

from __future__ import annotations

import json
import math
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adamctl.errors import RunFailedError

UNITS = (4000, 3900)
MODEL_BYTES = 4 * (64 * 4000 + 4000 + 4000 * 3900 + 3900 + 3900 * 10 + 10)
IMAGES_PER_PASS = 1437
FIRST_PASSES = 2
RUN_S_MAX = 600.0
EXPERIMENT = """\
name = "store-{store}"
[data]
format = "digits"
[model]
input = [8, 8, 1]
[[model.layers]]
type = "dense"
units = {units[0]}
activation = "relu"
[[model.layers]]
type = "dense"
units = {units[1]}
activation = "relu"
[[model.layers]]
type = "softmax"
units = 10
[optimizer]
type = "sgd"
lr = 0.001
[train]
passes = {passes}
batch = 32
evaluate_every = {passes}
checkpoint_every = {passes}
[cluster]
store = "{store}"
loss_window_s = {window_s}
"""


def training_with_and_without(
    place: Path, window_s: float, seconds: float, pairs: int, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Returns one row: images per second with and without flushing, the median of their ratio, and the processor time.

    `extra_processor_share` is a share of all cores' capacity.

    Args:
        place: a folder on the disk to measure.
        seconds: approximate training time of each run.

    Raises:
        RunFailedError: a run failed; the message ends with the end of its output.
    """
    progress("training: a first run, to find out how long a run takes")
    passes = math.ceil(seconds * _train(place, "none", window_s, FIRST_PASSES).images_per_s / IMAGES_PER_PASS)
    runs: dict[str, list[Run]] = {"disk": [], "none": []}
    for number in range(pairs):
        progress(f"training, pair {number + 1} of {pairs}: {passes} passes each")
        for store in ("none", "disk") if number % 2 else ("disk", "none"):
            runs[store].append(_train(place, store, window_s, passes))
    together = list(zip(runs["disk"], runs["none"], strict=True))
    ratios = [on.images_per_s / off.images_per_s for on, off in together]
    extra = [(on.processor_s - off.processor_s) / (off.train_s * (os.cpu_count() or 1)) for on, off in together]
    return {
        "case": "training",
        "bytes": MODEL_BYTES,
        "loss_window_s": window_s,
        "images_per_s": statistics.median(run.images_per_s for run in runs["disk"]),
        "limit_images_per_s": statistics.median(run.images_per_s for run in runs["none"]),
        "fraction_of_limit": statistics.median(ratios),
        "fractions": [round(ratio, 4) for ratio in ratios],
        "extra_processor_share": statistics.median(extra),
    }


@dataclass(frozen=True)
class Run:
    """One training run; `processor_s` is the time of all its processes, from start to end."""

    images_per_s: float
    train_s: float
    processor_s: float


def _train(place: Path, store: str, window_s: float, passes: int) -> Run:
    """Trains once, in separate processes."""
    file = place / f"store-{store}.toml"
    file.write_text(EXPERIMENT.format(store=store, units=UNITS, passes=passes, window_s=window_s), encoding="utf-8")
    command = [sys.executable, "-m", "adamctl", "train", str(file), "--json", "--run-dir", str(place / "runs")]
    before_s = _children_s()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX, check=False)
    except subprocess.TimeoutExpired:
        raise RunFailedError(f"training {passes} passes took more than {RUN_S_MAX:.0f} s") from None
    if done.returncode:
        raise RunFailedError("training failed: " + " ".join(done.stderr.strip().splitlines()[-3:]))
    result = json.loads(done.stdout)
    return Run(result["images_per_s"], result["train_seconds"], _children_s() - before_s)


def _children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime

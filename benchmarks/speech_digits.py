"""Top-1 of spoken digits by recording and by frame, ours and PyTorch's, seed by seed on the same features.

Ours is `adamctl train examples/speech_digits.toml` with every role on this machine, then `adamctl eval`. The peer
trains the same network on the same features for as many passes, with the rate of --peer-rates that its first seed does
best with, by recording and then by frame. Both on the standard split, and with one speaker as the test part.

    python benchmarks/speech_digits.py --data DIR [--seeds 3] [--speaker george] [--peer-python PYTHON_WITH_TORCH]
        [--json] [flags of adamctl train, such as --set train.passes=3]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from printed_object import ADAMCTL, printed_object

from adamctl.bench.script import run_script
from adamctl.config.experiment import Experiment
from adamctl.config.load import load_experiment, parse_setting
from adamctl.launch.trained import open_data
from adamctl.roles.data.core import FILE_ORDER, Range

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "speech_digits.toml"
STANDARD = "*_[0-4].wav"


def told(side: str, seed: int, result: dict[str, Any]) -> dict[str, Any]:
    """Says what a run has found, as it ends."""
    found = ", ".join(f"{key} {value:.4g}" for key, value in result.items())
    print(f"{side}, seed {seed}: {found}", file=sys.stderr, flush=True)
    return result


def ours(flags: list[str], seed: int) -> dict[str, Any]:
    """Trains the example once and returns its accuracies and speed."""
    with tempfile.TemporaryDirectory() as runs:
        command = [*ADAMCTL, "train", str(EXAMPLE), "--seed", str(seed), "--json"]
        trained = printed_object([*command, "--run-dir", runs, *flags])
        measured = printed_object([*ADAMCTL, "eval", "--run-dir", runs, "--json", *data_flags(flags)])
    top1, of_groups = measured["top1"], measured["by_group"]["top1"]
    return told("ours", seed, {"top1": top1, "group_top1": of_groups, "examples_per_s": trained["images_per_s"]})


def data_flags(flags: list[str]) -> list[str]:
    """Returns the folders of data among the flags."""
    return [flag for at, flag in enumerate(flags) if flag == "--data" or flags[at - 1] == "--data"]


def write_features(experiment: Experiment, path: Path) -> None:
    """Writes what the worker gets, and which test examples are of one recording."""
    opened = open_data(experiment, experiment.data)
    arrays: dict[str, Any] = {"groups_test": opened.groups("test")}
    for split in ("train", "test"):
        count = opened.examples[split]
        values, labels = np.empty((count, opened.form.elements), np.float32), np.empty(count, np.int32)
        opened.gather(Range(split, FILE_ORDER, 0, count), values, labels)
        opened.scaling.apply(values)
        arrays |= {f"x_{split}": values, f"y_{split}": labels.astype(np.int64)}
    np.savez(path, **arrays)


def peers(python: str, experiment: Experiment, seeds: int, rates: list[float]) -> list[dict[str, Any]]:
    """Returns the peer's results for each seed at its best rate."""
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "features.npz"
        write_features(experiment, archive)

        def one(seed: int, rate: float) -> dict[str, Any]:
            first = experiment.model.layers[0]
            command = [python, str(ROOT / "benchmarks" / "peers" / "torch_speech_digits.py"), "--archive", str(archive)]
            command += ["--seed", str(seed), "--lr", str(rate), "--passes", str(experiment.train.passes)]
            command += ["--batch", str(experiment.train.batch), "--units", str(getattr(first, "units", 0))]
            return told("PyTorch", seed, printed_object(command) | {"lr": rate})

        tried = [one(1, rate) for rate in rates]
        best = max(tried, key=lambda result: (result["group_top1"], result["top1"]))
        return [best, *(one(seed, best["lr"]) for seed in range(2, seeds + 1))]


def compared(split: str, test_files: str, options: argparse.Namespace, more: list[str]) -> dict[str, Any]:
    """Trains both on one split and returns all results and their means."""
    settings = [f"data.test_files={json.dumps(test_files)}"]
    flags = ["--data", options.data, *(part for setting in settings for part in ("--set", setting)), *more]
    mine = [ours(flags, seed) for seed in range(1, options.seeds + 1)]
    given = [*settings, *(after for before, after in pairwise(more) if before == "--set")]
    experiment = load_experiment(EXAMPLE, settings=list(map(parse_setting, given)), search=[options.data]).experiment
    theirs = peers(options.peer_python, experiment, options.seeds, options.peer_rates)
    row: dict[str, Any] = {"split": split, "test_files": test_files, "ours": mine, "torch": theirs}
    for key in ("group_top1", "top1"):
        row[f"mean_{key}"] = statistics.mean(result[key] for result in mine)
        row[f"torch_mean_{key}"] = statistics.mean(result[key] for result in theirs)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder that holds fsdd/")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--speaker", default="george", help="who is left out; empty: nobody")
    parser.add_argument("--peer-python", default=sys.executable, help="an interpreter that has PyTorch")
    parser.add_argument("--peer-rates", type=float, nargs="+", default=[0.05, 0.1, 0.2])
    parser.add_argument("--json", action="store_true")
    options, more = parser.parse_known_args()
    splits = {"standard": STANDARD} | (
        {f"without {options.speaker}": f"*_{options.speaker}_*"} if options.speaker else {}
    )
    rows = []
    for split, test_files in splits.items():
        row = compared(split, test_files, options, more)
        rows.append(row)
        if not options.json:
            by_seed = ", ".join(f"{result['group_top1']:.2%}" for result in row["ours"])
            print(
                f"{split}: by recording {row['mean_group_top1']:.2%} ({by_seed}), PyTorch "
                f"{row['torch_mean_group_top1']:.2%} (lr {row['torch'][0]['lr']:g}); by frame {row['mean_top1']:.2%}, "
                f"PyTorch {row['torch_mean_top1']:.2%}",
                flush=True,
            )
    if options.json:
        print(json.dumps({"schema_version": 1, "bench": "speech-digits", "splits": rows}, indent=2))


if __name__ == "__main__":
    run_script(main)

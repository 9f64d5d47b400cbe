"""What asynchrony costs in accuracy: one network under four rules, by free replicas, in step, and by PyTorch.

Six 3 x 3 convolutions of 16 to 64 maps with three poolings, a dense layer of 128, two dropouts of 0.3, batches of 64,
one cycle of the learning rate over all passes. It looks at the test loss after each pass, the mean over all seeds.
`1x2` is one worker of two threads, `2x1` two workers of one thread, `sync` one worker of one thread in step.

    python benchmarks/asynchrony.py --data DIR [--set mnist|caltech] [--rules sgd,adam] [--modes 1x2,2x1,sync,torch]
        [--seeds 3] [--examples 10000] [--peer-python PYTHON_WITH_TORCH] [--set-key train.n_push=2] [--json]

MNIST (DIR/mnist, IDX) is resized to 32 x 32 with one channel; the ten classes (DIR/caltech-10/caltech-10.tar) with
three.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import statistics
import sys
import tarfile
import tempfile
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from printed_object import printed_object

from adamctl.bench.script import run_script

HERE = Path(__file__).resolve().parent
SIDE = 32
RATES = {"sgd": 0.1, "momentum": 0.02, "adagrad": 0.01, "adam": 0.001}
MODES = {
    "1x2": ("cluster.workers=1", "cluster.threads=2"),
    "2x1": ("cluster.workers=2", "cluster.threads=1"),
    "sync": ("cluster.workers=1", "cluster.threads=1", "train.consistency=sync"),
}
Images = NDArray[np.uint8]
Parts = dict[str, NDArray[Any]]


def read_idx(path: Path) -> Images:
    raw = gzip.decompress(path.read_bytes())
    shape = [int.from_bytes(raw[4 + 4 * axis : 8 + 4 * axis], "big") for axis in range(raw[3])]
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


def resized(image: Image.Image) -> Images:
    return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR), np.uint8)


def mnist(folder: Path, examples: int, tested: int) -> Parts:
    """Returns the first images of each part, resized, [n, 32, 32, 1]."""
    found: Parts = {}
    for part, name, count in (("train", "train", examples), ("test", "t10k", tested)):
        images = read_idx(folder / "mnist" / f"{name}-images-idx3-ubyte.gz")[:count]
        found[f"x_{part}"] = np.stack([resized(Image.fromarray(image)) for image in images])[..., None]
        found[f"y_{part}"] = read_idx(folder / "mnist" / f"{name}-labels-idx1-ubyte.gz")[:count].astype(np.int32)
    return found


def caltech(folder: Path) -> Parts:
    """Returns the ten classes, [n, 32, 32, 3]; a fifth of them, by the hash of their names, is the test part."""
    rows: dict[str, list[tuple[Images, int]]] = {"train": [], "test": []}
    with tarfile.open(folder / "caltech-10" / "caltech-10.tar") as archive:
        members = sorted((m for m in archive.getmembers() if m.name.endswith(".jpg")), key=lambda member: member.name)
        names = sorted({Path(member.name).parent.name for member in members})
        for member in members:
            stream = archive.extractfile(member)
            assert stream is not None
            image = Image.open(io.BytesIO(stream.read()), formats=["JPEG"]).convert("RGB")
            part = "test" if blake2b(member.name.encode(), digest_size=1).digest()[0] < 51 else "train"
            rows[part].append((resized(image), names.index(Path(member.name).parent.name)))
    return {
        f"{axis}_{part}": np.stack([row[at] for row in found]).astype(kind)
        for part, found in rows.items()
        for at, (axis, kind) in enumerate((("x", np.uint8), ("y", np.int32)))
    }


def experiment(rule: str, channels: int, passes: int, path: Path) -> str:
    """Returns the experiment file."""
    lines = [
        'name = "asynchrony"',
        f'[data]\nformat = "npz"\nsource = "{path}"',
        f"[model]\ninput = [{SIDE}, {SIDE}, {channels}]",
    ]
    for maps in (16, 32, 64):
        layer = (
            f'[[model.layers]]\ntype = "conv2d"\nfilters = {maps}\nkernel = 3\npadding = "same"\nactivation = "relu"'
        )
        lines += [layer, layer, '[[model.layers]]\ntype = "maxpool2d"\nsize = 2']
    drop = '[[model.layers]]\ntype = "dropout"\nrate = 0.3'
    lines += [drop, '[[model.layers]]\ntype = "dense"\nunits = 128\nactivation = "relu"', drop]
    lines += [
        '[[model.layers]]\ntype = "softmax"\nunits = 10',
        f'[optimizer]\ntype = "{rule}"\nlr = {RATES[rule]}',
        '[optimizer.schedule]\ntype = "one_cycle"',
        f"[train]\npasses = {passes}\nbatch = 64\nevaluate_every = 1\ncheckpoint_every = 0",
    ]
    return "\n".join(lines) + "\n"


def ours(file: Path, mode: str, seed: int, keys: list[str], python: str = sys.executable) -> dict[str, Any]:
    """Trains once; returns the test losses by pass, images/s and how old gradients were."""
    with tempfile.TemporaryDirectory() as runs:
        command = [python, "-m", "adamctl", "train", str(file), "--seed", str(seed), "--json", "--run-dir", runs]
        for key in (*MODES[mode], *keys):
            command += ["--set", key]
        result = printed_object(command)
        metrics = [json.loads(line) for found in Path(runs).rglob("metrics.jsonl") for line in found.open()]
    losses = [line["loss"] for line in metrics if line["kind"] == "evaluation"]
    ages = {key: result.get(key) for key in ("gradient_age_p50", "gradient_age_p99")}
    return {"losses": losses, "top1": result["test_top1"], "images_per_s": result["images_per_s"], **ages}


def peer(python: str, data: Path, rule: str, passes: int, seed: int, init: str) -> dict[str, Any]:
    """Trains the same with PyTorch once."""
    command = [python, str(HERE / "peers" / "torch_asynchrony.py"), "--data", str(data), "--rule", rule]
    command += ["--lr", str(RATES[rule]), "--passes", str(passes), "--seed", str(seed), "--init", init]
    return printed_object(command)


def summary(rule: str, mode: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the row of one rule and mode: means over its runs."""
    losses = [round(statistics.fmean(column), 4) for column in zip(*(run["losses"] for run in runs), strict=True)]
    row: dict[str, Any] = {"rule": rule, "mode": mode, "runs": len(runs), "losses": losses}
    row["top1"] = round(statistics.fmean(run["top1"] for run in runs), 4)
    row["images_per_s"] = round(statistics.median(run["images_per_s"] for run in runs), 1)
    for key in ("gradient_age_p50", "gradient_age_p99"):
        ages = [run[key] for run in runs if run.get(key) is not None]
        row[key] = max(ages) if ages else None
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--set", choices=("mnist", "caltech"), default="mnist")
    parser.add_argument("--rules", default=",".join(RATES))
    parser.add_argument("--modes", default="1x2,2x1,sync,torch")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--examples", type=int, default=10_000, help="of MNIST")
    parser.add_argument("--tested", type=int, default=10_000, help="of MNIST's test part")
    parser.add_argument("--set-key", action="append", default=[], metavar="KEY=VALUE", help="as --set of adamctl train")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has adamctl")
    parser.add_argument("--peer-python", default=sys.executable, help="an interpreter that has PyTorch")
    parser.add_argument("--peer-init", choices=("torch", "he"), default="he", help="ours are those of he")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "data.npz"
        parts = (
            mnist(options.data, options.examples, options.tested) if options.set == "mnist" else caltech(options.data)
        )
        np.savez(path, **parts)  # type: ignore[arg-type]
        for rule in options.rules.split(","):
            file = Path(scratch) / f"{rule}.toml"
            file.write_text(experiment(rule, parts["x_train"].shape[-1], options.passes, path))
            found: dict[str, list[dict[str, Any]]] = {mode: [] for mode in options.modes.split(",")}
            for seed in range(options.first_seed, options.first_seed + options.seeds):
                for mode, runs in found.items():
                    if mode == "torch":
                        runs.append(peer(options.peer_python, path, rule, options.passes, seed, options.peer_init))
                    else:
                        runs.append(ours(file, mode, seed, options.set_key, options.python))
            for mode, runs in found.items():
                rows.append(summary(rule, mode, runs))
                if not options.json:
                    print(" ".join(f"{key}={value}" for key, value in rows[-1].items()), flush=True)
    if options.json:
        print(json.dumps({"schema_version": 1, "bench": "asynchrony", "set": options.set, "results": rows}, indent=2))


if __name__ == "__main__":
    run_script(main)

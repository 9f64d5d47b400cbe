"""The same images sent as bytes and as float32: how many bytes travel, and how many images a second arrive, scaled."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from adamctl.bench.bars import Found, Progress
from adamctl.bench.data.parts import DataSettings
from adamctl.bench.data.serving import DataProcesses, Reading
from adamctl.config.data import DataConfig

IMAGES = 20_000
SHAPE = (28, 28, 1)
RANGE_EXAMPLES = 640  # as a worker reads them: `train.range_batches` = 20 batches of 32


def measure(settings: DataSettings, progress: Progress) -> dict[str, Found]:
    """Returns bytes per image, and images per second, of bytes against float32: the medians of all rounds."""
    found: dict[str, list[Reading]] = {"uint8": [], "float32": []}
    with tempfile.TemporaryDirectory(prefix="adamctl-bench-") as folder:
        configs = {dtype: _write(Path(folder) / f"{dtype}.npz", dtype) for dtype in found}
        with DataProcesses(1, 1, [folder]) as servers:
            for turn in range(settings.rounds):
                progress(f"images of {SHAPE[0]} x {SHAPE[1]} on the wire: round {turn + 1} of {settings.rounds}")
                for dtype, config in configs.items():
                    found[dtype].append(servers.read(config, SHAPE, RANGE_EXAMPLES, settings.seconds, 100 * turn))
    each = {dtype: float(np.median([one.example_bytes for one in of])) for dtype, of in found.items()}
    rates = {dtype: float(np.median([one.rate for one in of])) for dtype, of in found.items()}
    return {
        "wire-bytes": {
            "ratio": each["uint8"] / each["float32"], **{f"{dtype}_bytes": size for dtype, size in each.items()}
        },
        "wire-rate": {
            "ratio": rates["uint8"] / rates["float32"],
            **{f"{dtype}_images_per_s": rate for dtype, rate in rates.items()},
        },
    }  # fmt: skip


def _write(path: Path, dtype: str) -> DataConfig:
    images = np.random.default_rng(1).integers(0, 256, (IMAGES, *SHAPE[:2])).astype(dtype)
    np.savez(path, x_train=images, y_train=np.arange(IMAGES) % 10)
    return DataConfig(format="npz", source=str(path), scale="standard")

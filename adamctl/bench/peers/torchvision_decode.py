"""torchvision's part of `adamctl bench data --only decode`: JPEG files decoded, resized, cropped and reflected.

Runs by its path in any interpreter that has PyTorch and torchvision; nothing else is imported. Reads one JSON object
per line from stdin and answers each with one on stdout:

    {"do": "prepare", "files": [...], "side": 100, "padding": 4, "batch": 64}
        -> {"ok": true, "torchvision_version": "...", "pipelines_us": {"tensor": ..., "pil": ..., "pil reduced": ...}}
    {"do": "run", "seconds": 2.0, "workers": 0}
        -> {"images": ..., "seconds": ..., "cpu_seconds": ...}

Every pipeline scales the shorter side, crops the middle, then crops at random with padding and reflects at random. The
fastest of them is run: in this process on one thread, or in a DataLoader of so many workers. Batches are uint8.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torchvision
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.io import ImageReadMode, decode_jpeg, read_file
from torchvision.transforms.v2 import functional

Pipeline = Callable[[str], Any]
CHOSEN_BY = 150  # files that the pipelines are compared on
TRIES = 3
PREFETCHED = 4  # batches of each worker


class Pipelines:
    """Ways of doing the same with torchvision."""

    def __init__(self, side: int, padding: int) -> None:
        self.side, self.padding = side, padding
        self.all: dict[str, Pipeline] = {"tensor": self.tensor, "pil": self.pil, "pil reduced": self.pil_reduced}

    def tensor(self, path: str) -> Any:
        image = decode_jpeg(read_file(path), mode=ImageReadMode.RGB)
        small = functional.resize(image, [self.side], antialias=True)
        return self._changed(functional.center_crop(small, [self.side, self.side]))

    def pil(self, path: str) -> Any:
        return self._of_pil(Image.open(path))

    def pil_reduced(self, path: str) -> Any:
        image = Image.open(path)
        image.draft("RGB", (self.side, self.side))
        return self._of_pil(image)

    def _of_pil(self, image: Any) -> Any:
        small = functional.center_crop(functional.resize(image.convert("RGB"), [self.side]), [self.side, self.side])
        return self._changed(functional.pil_to_tensor(small))

    def _changed(self, image: Any) -> Any:
        image = functional.pad(image, [self.padding])
        top, left = random.randint(0, 2 * self.padding), random.randint(0, 2 * self.padding)
        image = functional.crop(image, top, left, self.side, self.side)
        return functional.horizontal_flip(image) if random.random() < 0.5 else image


class Files(Dataset):  # type: ignore[misc]
    """The files through one pipeline."""

    def __init__(self, files: list[str], pipeline: Pipeline) -> None:
        self.files, self.pipeline = files, pipeline

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        return self.pipeline(self.files[index])


def in_this_process(files: list[str], pipeline: Pipeline, batch: int) -> Iterator[int]:
    """Yields the images of each batch, for ever."""
    while True:
        yield len(torch.stack([pipeline(path) for path in random.sample(files, batch)]))


def in_workers(files: list[str], pipeline: Pipeline, batch: int, workers: int) -> Iterator[int]:
    dataset = Files(files, pipeline)
    loader = DataLoader(
        dataset, batch, shuffle=True, num_workers=workers, persistent_workers=True, prefetch_factor=PREFETCHED
    )  # fmt: skip
    while True:
        for images in loader:
            yield len(images)


def chosen(pipelines: Pipelines, files: list[str]) -> tuple[Pipeline, dict[str, float]]:
    """Returns the fastest pipeline, and each one's computing time for an image in microseconds: the best of tries."""
    found: dict[str, float] = {}
    for name, pipeline in pipelines.all.items():
        tries = []
        for _ in range(TRIES):
            begun_s = time.process_time()
            for path in files:
                pipeline(path)
            tries.append(1e6 * (time.process_time() - begun_s) / len(files))
        found[name] = min(tries)
    return pipelines.all[min(found, key=found.__getitem__)], found


def main() -> None:
    torch.set_num_threads(1)
    files: list[str] = []
    pipeline: Pipeline | None = None
    running: dict[int, Iterator[int]] = {}
    batch = 1
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "prepare":
            files, batch = request["files"], request["batch"]
            pipeline, found = chosen(Pipelines(request["side"], request["padding"]), files[:CHOSEN_BY])
            answer: dict[str, Any] = {"ok": True, "torchvision_version": torchvision.__version__, "pipelines_us": found}
            print(json.dumps(answer), flush=True)
            continue
        assert pipeline is not None
        workers = request["workers"]
        if workers not in running:
            made = in_workers(files, pipeline, batch, workers) if workers else in_this_process(files, pipeline, batch)
            next(made)  # the workers are there
            running[workers] = made
        for _ in range(PREFETCHED * workers):
            next(running[workers])  # what they have prepared since the last run is not counted
        images, begun_s, cpu_s = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - begun_s < request["seconds"]:
            images += next(running[workers])
        seconds = {"seconds": time.perf_counter() - begun_s, "cpu_seconds": time.process_time() - cpu_s}
        print(json.dumps({"images": images, **seconds}), flush=True)


if __name__ == "__main__":
    main()

"""JPEG files decoded, scaled, cropped and reflected: a data server's threads, and torchvision on the same files.

Ours is the `DataStore` of a data server in this process, with OpenCV, without a cache, read by a reader that discards
what it gets. Theirs is the fastest of torchvision's pipelines, in one process, and in a DataLoader of two workers.
Where others use the processor too, the computing time of an image on both sides says more (`cpu_ratio`).
"""

from __future__ import annotations

import itertools
import queue
import statistics
import tarfile
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from adamctl.bench.bars import Found, Progress
from adamctl.bench.data.parts import DataSettings
from adamctl.bench.peer import PeerProcess, require
from adamctl.config.augment import AugmentConfig
from adamctl.config.data import DataConfig
from adamctl.errors import ConfigurationError
from adamctl.roles.data.catalogue.catalogue import find_source
from adamctl.roles.data.core import Range
from adamctl.roles.data.preparing import Asked, ReadyRange
from adamctl.roles.data.store import DataStore

SIDE: Final = 100
PADDING: Final = 4
BATCH: Final = 64
ASKED_AHEAD: Final = 4
PREPARE_S: Final = 300.0
ANSWER_S: Final = 120.0
_PAIRS: Final = {"decode-one": (1, 0), "decode-two": (2, 2)}
"""Bar -> our decoding threads, and workers of their DataLoader (0: none, in one process)."""


def measure(settings: DataSettings, progress: Progress) -> dict[str, Found]:
    """Returns how many times as many images a second ours makes; the median of the rounds, each a pair of runs."""
    with ExitStack() as stack:
        try:
            require(settings.peer_python, "torchvision")
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="adamctl-decode-")))
            files = _unpack(settings, folder)
            stores = {name: _Reader(folder, threads) for name, (threads, _) in _PAIRS.items()}
        except ConfigurationError as error:
            return {name: {"cannot": str(error)} for name in _PAIRS}
        for store in stores.values():
            stack.callback(store.close)
        peer = stack.enter_context(PeerProcess(settings.peer_python, "torchvision_decode.py", 1))
        prepared = peer.ask(
            {"do": "prepare", "files": files, "side": SIDE, "padding": PADDING, "batch": BATCH}, PREPARE_S
        )
        ours: dict[str, list[float]] = {name: [] for name in _PAIRS}
        theirs: dict[str, list[float]] = {name: [] for name in _PAIRS}
        cpu: list[float] = []
        ours_us: list[float] = []
        seconds = max(settings.seconds, 1.0)
        for turn in range(settings.rounds):
            for name, (threads, workers) in _PAIRS.items():
                progress(f"decode: round {turn + 1} of {settings.rounds}, {threads} threads and {workers} workers")
                rate, cpu_s = stores[name].rate(seconds)
                ours[name].append(rate)
                answer = peer.ask({"do": "run", "seconds": seconds, "workers": workers}, ANSWER_S + seconds)
                theirs[name].append(answer["images"] / answer["seconds"])
                if not workers:
                    cpu.append(answer["cpu_seconds"] / answer["images"] / cpu_s)
                    ours_us.append(1e6 * cpu_s)
    found: dict[str, Found] = {
        name: {
            "ratio": statistics.median(mine / other for mine, other in zip(ours[name], theirs[name], strict=True)),
            "ours_images_per_s": statistics.median(ours[name]),
            "torchvision_images_per_s": statistics.median(theirs[name]),
            "pipelines_us": prepared["pipelines_us"],
        }
        for name in _PAIRS
    }
    return found | {"decode-one": {**found["decode-one"], "cpu_ratio": statistics.median(cpu), "ours_us": min(ours_us)}}


class _Reader:
    """Reads batch after batch from a store and discards them."""

    def __init__(self, folder: Path, threads: int) -> None:
        """Raises ConfigurationError: OpenCV is not installed, or there are too few images."""
        config = DataConfig(
            format="imagefolder", source=str(folder), scale="none", decoder="opencv",
            augment=AugmentConfig(crop=PADDING, reflect=True),
        )  # fmt: skip
        self._store = DataStore(threads=threads, ahead=0, memory_bytes=1)  # nothing is kept, or prepared in their turn
        try:
            dataset = self._store.open(config, (SIDE, SIDE, 3), 7)
        except BaseException:
            self._store.close()
            raise
        self._name, examples = dataset.name, dataset.examples["train"]
        self._done: queue.SimpleQueue[ReadyRange | Exception] = queue.SimpleQueue()
        self._wanted = (
            Asked(Range("train", number, at, at + BATCH))
            for number in itertools.count()
            for at in range(0, examples - BATCH + 1, BATCH)
        )
        self.rate(0.5)  # kernels are compiled

    def rate(self, seconds: float) -> tuple[float, float]:
        """Returns images a second, and this process's computing time for an image."""
        images, out, begun_s, cpu_s = 0, 0, time.perf_counter(), time.process_time()
        while (passed_s := time.perf_counter() - begun_s) < seconds:
            while out < ASKED_AHEAD:
                ready = self._store.read(self._name, next(self._wanted), self._done.put)
                out += 1
                if ready is not None:
                    self._done.put(ready)
            images += self._take()
            out -= 1
        late = sum(self._take() for _ in range(out))
        return images / passed_s, (time.process_time() - cpu_s) / (images + late)

    def _take(self) -> int:
        found = self._done.get()
        if isinstance(found, Exception):
            raise found
        found.release()
        return found.examples

    def close(self) -> None:
        self._store.close()


def _unpack(settings: DataSettings, folder: Path) -> list[str]:
    """Unpacks caltech-10 and returns its files. Raises ConfigurationError: it was not found."""
    found = find_source(DataConfig(format="tar", source="caltech-10", search=settings.data))
    assert isinstance(found, Path)
    archives = [found] if found.is_file() else sorted(found.glob("*.tar"))
    for path in archives:
        with tarfile.open(path) as archive:
            archive.extractall(folder, filter="data")
    return sorted(str(path) for path in folder.rglob("*.jpg"))

"""How a data server's memory is divided, and that it stays within what it was given."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adamctl.config.data import DataConfig, FeaturesConfig
from adamctl.errors import ConfigurationError
from adamctl.roles.data.memory import memory_of_machine, memory_of_option
from adamctl.roles.data.readers import parquet_file
from adamctl.roles.data.readers.source import FILE_SPLITS
from adamctl.roles.data.store import IDLE_S_MIN, DataStore
from tests.roles.data.speech.sounds import write_recordings

MIB = 1 << 20


@pytest.mark.parametrize(("text", "buffers"), [("128MiB", 64), ("256MiB", 64), ("1GiB", 128), ("64GiB", 512)])
def test_examples_and_buffers_are_together_what_is_given(text: str, buffers: int) -> None:
    found = memory_of_option(text)
    assert found is not None and found.buffers_bytes == buffers * MIB
    assert sum(found) == float(text[:-3]) * {"M": MIB, "G": 1024 * MIB}[text[-3]]


def test_without_a_bound_a_server_has_the_machine() -> None:
    assert memory_of_option(None) is None
    assert memory_of_machine(64 << 30) == (64 << 30, 512 * MIB)
    assert memory_of_machine(MIB) == (MIB, 128 * MIB)


@pytest.mark.parametrize("text", ["much", "0MB", "100MB", "-1GB"])
def test_what_is_no_memory_for_a_server_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--memory: expected"):
        memory_of_option(text)


PROGRAM = """
import queue, sys, psutil
from adamctl.config.data import DataConfig
from adamctl.roles.data.core import Range
from adamctl.roles.data.memory import memory_of_option
from adamctl.roles.data.preparing import Asked
from adamctl.roles.data.store import DataStore

memory = memory_of_option(sys.argv[2])
store = DataStore([sys.argv[1]], threads=2, memory_bytes=memory.examples_bytes, buffers_bytes=memory.buffers_bytes)
warm = DataConfig(format="npy", source="warm")
config = DataConfig(format="npy", source="set", order="blocks", window_blocks=8, memory_share=float(sys.argv[3]))
process = psutil.Process()

def read(dataset, number, start, stop):
    results = queue.Queue()
    found = store.read(dataset.name, Asked(Range("train", number, start, stop)), results.put) or results.get(timeout=60)
    if isinstance(found, Exception):
        raise found
    found.release()

small = store.open(warm, (28, 28, 1), 1)
read(small, 0, 0, 100)
before = process.memory_info().rss
dataset = store.open(config, (28, 28, 1), 1)
most = 0
for number in range(2):
    for start in range(0, dataset.examples["train"], 512):
        read(dataset, number, start, min(start + 512, dataset.examples["train"]))
        if start % 8192 == 0:
            most = max(most, process.memory_info().rss)
(status, _) = sorted(store.status()["datasets"], key=lambda one: one["source"])
print(most - before, status["read_bytes"], store.status()["cache_bytes"])
store.close()
"""


def test_a_process_with_a_set_of_four_times_its_memory_stays_within_it(tmp_path: Path) -> None:
    examples, image_bytes = 200_000, 784
    for name, count in (("set", examples), ("warm", 100)):
        (tmp_path / name).mkdir()
        shape = (count, 28, 28)
        images = np.lib.format.open_memmap(tmp_path / name / "x_train.npy", mode="w+", dtype=np.uint8, shape=shape)
        images[...] = np.arange(count, dtype=np.uint32)[:, None, None] % 251
        images.flush()
        del images
        np.save(tmp_path / name / "y_train.npy", np.zeros(count, np.uint8))
    # 128 MiB, of which 64 MiB are for examples; and of those 0.6: a quarter of the set.
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), "128MiB", "0.6"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    growth_bytes, read_bytes, held_bytes = map(int, done.stdout.split())
    set_bytes = examples * image_bytes
    assert held_bytes <= 0.6 * 64 * MIB and set_bytes > 3.8 * 0.6 * 64 * MIB
    # What is held, prepared ranges, and the order of three windows: well below the 128 MiB, and below the set.
    assert growth_bytes < 0.6 * 64 * MIB + 40 * MIB
    kept = 0.6 * 64 * MIB - 2 * 8 * 1024 * image_bytes
    assert 2 * set_bytes - kept - 8 * MIB <= read_bytes <= 2 * set_bytes - kept + 8 * 1024 * image_bytes + 8 * MIB


def parquet_set(tmp_path: Path) -> tuple[DataConfig, tuple[int, ...]]:
    values = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(8000 * 64) % 256, pa.uint8()), 64)
    table = pa.table({"x": values, "label": np.arange(8000) % 2})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=1000)
    return DataConfig(format="parquet", source=str(tmp_path / "x.parquet"), scale="unit"), (64,)


def audio_set(tmp_path: Path) -> tuple[DataConfig, tuple[int, ...]]:
    folder = write_recordings(tmp_path / "set", {f"{digit}_{index}.wav": 40_000 for digit in "37" for index in "01"})
    features = FeaturesConfig(bands=40, context=0)
    return DataConfig(format="audio", source=str(folder), class_from="name", features=features), (40,)


@pytest.mark.parametrize("made", [parquet_set, audio_set])
def test_sets_that_sources_hold_stay_within_the_share_together(
    made: Callable[[Path], tuple[DataConfig, tuple[int, ...]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that one job after another comes to with another seed does not hold one copy for each."""
    monkeypatch.setattr(parquet_file, "_HELD_BYTES_MAX", 100)
    config, shape = made(tmp_path)
    store = DataStore([], threads=1, memory_bytes=1 << 30)
    alone = store.open(config, shape, 0)
    whole_bytes = alone.source.resident_bytes
    store.close_dataset(alone.name)
    budget_bytes = 2.5 * whole_bytes
    config = msgspec.structs.replace(config, memory_share=budget_bytes / store.memory_bytes)
    opened = [store.open(config, shape, seed) for seed in range(5)]
    assert [dataset.source.resident_bytes for dataset in opened[:2]] == [whole_bytes, whole_bytes]
    labels_bytes = 5 * 8 * sum(len(opened[0].source.labels(split)) for split in FILE_SPLITS)
    assert sum(dataset.size_bytes for dataset in opened) < budget_bytes + labels_bytes
    assert len({(dataset.scaling, *dataset.examples.values()) for dataset in opened}) == 1, "it depends on no memory"
    for dataset in opened:
        dataset.read_at_s -= IDLE_S_MIN
    assert store.open(config, shape, 5).source.resident_bytes == whole_bytes, "those that are idle make room"
    store.close()

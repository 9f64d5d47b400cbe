"""The parameter server's store compared with the disk: flushing, recovery from a cold cache, and a long run's log.

Flushing writes shards of 1 MiB (values only) in the store's groups, made durable one by one; its limit is a plain file
of the same bytes, written in order and synced at its end. Recovery opens that log with none of it cached: checks,
descriptions, and a copy of every live shard; its limit is reading the file in order. Rounds of both alternate; the
report gives the best of each and the median of the rounds' ratios. The long run takes the store through an hour's
updates in simulated time, on shards of 64 KiB: how many updates fold into a record, and how large log and file get.
`store_training` measures the cost of flushing for training.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import numpy as np

from adamctl.bench.report import make_report
from adamctl.bench.store.training import training_with_and_without
from adamctl.kernels.operation import Array
from adamctl.roles.ps.core.exactly_once import ClientRecord, MemoryRecord
from adamctl.roles.ps.core.flush import Entry, FlushConfig, FlushCore
from adamctl.roles.ps.store.lmdb_log import LogStore, Writing
from adamctl.roles.ps.store.record import JobIdentity, ShardState

PACKAGES = ("adamctl", "lmdb", "numpy")
SHARD_BYTES = 1 << 20
LONG_RUN_SHARD_BYTES = 64 << 10
LONG_RUN_STEP_S = 0.25
FEW = 0.05
"""In the uneven long run, this share of the shards gets all updates but this share."""
_READ_BYTES = 8 << 20
_JOB = JobIdentity("bench", 1, "", "sgd")
_MEMORY = MemoryRecord((ClientRecord("worker", 1, 1),))


def run_store_benchmark(
    *,
    folder: Path | None = None,
    megabytes: int = 512,
    rounds: int = 5,
    window_s: float = 5.0,
    hours: float = 1.0,
    long_run_megabytes: int = 4,
    training_pairs: int = 0,
    training_s: float = 20.0,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Returns the report that `adamctl bench store --json` prints.

    Args:
        folder: a folder on the disk to measure; default: the system's folder for temporary files.
        megabytes: size of the model that is flushed and recovered.
        rounds: rounds of each side.
        window_s, hours, long_run_megabytes: loss window, duration and model size of the long run.
        training_pairs: pairs of training runs with and without a store, of `training_s` seconds each; 0 for none.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix="adamctl-bench-") as name:
        place = Path(name)
        results = _flush_and_recovery(place, megabytes, rounds, progress)
        for load in ("even", "uneven"):
            progress(f"{hours:g} hours of {load} updates")
            results.append(_long_run(place / load, load, window_s, hours, long_run_megabytes))
        if training_pairs:
            results.append(training_with_and_without(place, window_s, training_s, training_pairs, progress))
        return make_report("store", PACKAGES, results)


# --- flushing and recovery --------------------------------------------------------------------------------------------


def _flush_and_recovery(
    place: Path, megabytes: int, rounds: int, progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    shards = max((megabytes * 1_000_000) // SHARD_BYTES, 1)
    values = np.random.default_rng(1).standard_normal(SHARD_BYTES // 4).astype(np.float32)
    rounds_of: dict[str, list[float]] = {side: [] for side in ("flush", "write", "recovery", "read")}
    for number in range(rounds):
        progress(f"round {number + 1} of {rounds}: {shards} shards of 1 MiB")
        log = place / f"round-{number}"
        rounds_of["write"].append(_plain_write(place / "plain", values, shards))
        rounds_of["flush"].append(_flush(log, values, shards))
        _forget(log / "log.mdb")
        rounds_of["read"].append(_plain_read(log / "log.mdb"))
        _forget(log / "log.mdb")
        rounds_of["recovery"].append(_recover(log, shards))
        (log / "log.mdb").unlink()
    size_bytes = shards * SHARD_BYTES
    return [
        _result("flush", size_bytes, rounds_of["flush"], rounds_of["write"]),
        _result("recovery", size_bytes, rounds_of["recovery"], rounds_of["read"]),
    ]


def _result(case: str, size_bytes: int, seconds: Sequence[float], limit_seconds: Sequence[float]) -> dict[str, Any]:
    """Compares each round with its limit's round just before it: a shared disk changes from second to second."""
    fractions = [limit / ours for ours, limit in zip(seconds, limit_seconds, strict=True)]
    return {
        "case": case,
        "bytes": size_bytes,
        "seconds": min(seconds),
        "gb_per_s": size_bytes / min(seconds) / 1e9,
        "limit_gb_per_s": size_bytes / min(limit_seconds) / 1e9,
        "fraction_of_limit": median(fractions),
        "fractions": [round(fraction, 3) for fraction in fractions],
    }


def _flush(folder: Path, values: Array, shards: int) -> float:
    store = LogStore(folder)
    per_group = FlushConfig().group_bytes // SHARD_BYTES
    started = time.perf_counter()
    for start in range(0, shards, per_group):
        group = range(start, min(start + per_group, shards))
        store.write([_writing(1 + shard, shard, values, 1) for shard in group], 1)
    seconds = time.perf_counter() - started
    store.close()
    return seconds


def _writing(sequence: int, shard: int, values: Array, counter: int) -> Writing:
    return Writing(sequence, ShardState(_JOB, shard, values.size, 1, 1, counter, counter, _MEMORY), (values,))


def _plain_write(path: Path, values: Array, shards: int) -> float:
    data = values.data.cast("B")
    started = time.perf_counter()
    with open(path, "wb", buffering=0) as file:
        for _ in range(shards):
            file.write(data)
        os.fsync(file.fileno())
    seconds = time.perf_counter() - started
    path.unlink()
    return seconds


def _forget(path: Path) -> None:
    """Drops a file from the cache, if the system follows the advice."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _plain_read(path: Path) -> float:
    buffer = bytearray(_READ_BYTES)
    started = time.perf_counter()
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return time.perf_counter() - started


def _recover(folder: Path, shards: int) -> float:
    started = time.perf_counter()
    store = LogStore(folder)
    seconds = time.perf_counter() - started
    store.close()
    if len(store.loaded) != shards:
        raise RuntimeError(f"expected {shards} shards in {folder}; found {len(store.loaded)}")
    return seconds


# --- a long run -------------------------------------------------------------------------------------------------------


def _long_run(folder: Path, load: str, window_s: float, hours: float, megabytes: int) -> dict[str, Any]:
    """Runs flush core and log through an hour's steps, as fast as the disk writes its groups."""
    shards = max(megabytes * 1_000_000 // LONG_RUN_SHARD_BYTES, 1)
    values = np.ones(LONG_RUN_SHARD_BYTES // 4, np.float32)
    entries = [Entry(number, LONG_RUN_SHARD_BYTES) for number in range(shards)]
    core, store, chance = FlushCore(FlushConfig(window_s=window_s)), LogStore(folder), Random(1)
    log_share = file_share = seconds = 0.0
    steps = round(hours * 3600 / LONG_RUN_STEP_S)
    for step in range(steps):
        now = step * LONG_RUN_STEP_S
        for number in _updated(load, shards, chance):
            core.changed(entries[number], now)
        while (group := core.take(now)) is not None:
            for item in group.items:
                core.taken(item)
            started = time.perf_counter()
            written = [_writing(item.sequence, item.entry.owner, values, step) for item in group.items]
            core.finished(store.write(written, group.first))
            seconds += time.perf_counter() - started
        if step > steps // 10:  # the whole model is on disk
            log_share = max(log_share, core.log_bytes / core.live_bytes)
            file_share = max(file_share, store.file_bytes / core.live_bytes)
    store.close()
    return {
        "case": f"long run, {load}",
        "hours": hours,
        "bytes": core.record_bytes,
        "seconds": seconds,
        "gb_per_s": core.record_bytes / max(seconds, 1e-9) / 1e9,
        "updates_per_record": core.updates / max(core.records, 1),
        "rewritten_share": core.rewritten_bytes / max(core.record_bytes, 1),
        "log_over_live_bytes": log_share,
        "file_over_live_bytes": file_share,
    }


def _updated(load: str, shards: int, chance: Random) -> Sequence[int]:
    """Returns which shards a step updates."""
    if load == "even":
        return range(shards)
    few = max(round(shards * FEW), 1)
    return [chance.randrange(few) if chance.random() > FEW else chance.randrange(shards) for _ in range(shards)]

"""For what share of its time a worker waits for data, on MNIST with affine and elastic distortions.

Adam's network, one compute thread that applies its own gradients, one data server with one decoding thread: two cores'
worth of work in all.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from pathlib import Path
from typing import Any

import psutil

from adamctl.bench.bars import Found, Progress
from adamctl.bench.data.parts import DataSettings
from adamctl.bench.kernels.sample_models import ADAM_MNIST
from adamctl.bench.watched_run import WatchedRun
from adamctl.config.augment import AugmentConfig, ElasticConfig
from adamctl.config.data import DataConfig
from adamctl.config.experiment import ClusterConfig, Experiment, OptimizerConfig, TrainConfig
from adamctl.config.resolved import write_resolved
from adamctl.errors import ConfigurationError
from adamctl.model.description import Model
from adamctl.roles.data.catalogue.catalogue import find_source

DISTORTIONS = AugmentConfig(rotate=10, scale=0.1, shear=0.1, elastic=ElasticConfig(sigma=4, alpha=34))
LOOK_S = 0.1


def measure(settings: DataSettings, progress: Progress) -> dict[str, Found]:
    """Returns the share of each of some runs; the median counts."""
    data = DataConfig(format="idx", source="mnist", search=settings.data, augment=DISTORTIONS)
    try:
        find_source(data)
    except ConfigurationError:
        return {"waiting": {"cannot": f"{data.source} is in none of the folders of --data"}}
    return {"waiting": measure_waiting(data, ADAM_MNIST, settings.waiting_passes, settings.rounds, progress)}


def measure_waiting(data: DataConfig, model: Model, passes: int, rounds: int, progress: Progress) -> Found:
    """Returns what is found for any data and network."""
    experiment = Experiment(
        name="waiting", model=model, data=data, optimizer=OptimizerConfig(type="sgd", lr=0.1, clip_norm=1.0),
        train=TrainConfig(passes=passes, batch=32, evaluate_every=passes),
        cluster=ClusterConfig(workers=1, threads=1, ps=0, data=1),
    )  # fmt: skip
    results = []
    for turn in range(rounds):
        progress(f"waiting: run {turn + 1} of {rounds}, {passes} passes")
        results.append(asyncio.run(_run(experiment)))
    shares = [result["waiting_share"] for result in results]
    return {
        "ratio": statistics.median(shares),
        "least": min(shares),
        "most": max(shares),
        "images_per_s": max(result["images_per_s"] for result in results),
        "data_server_cores": statistics.median(result["data_server_cores"] for result in results),
    }


async def _run(experiment: Experiment) -> dict[str, Any]:
    """Trains once; adds how many cores the data server used from the first step to the last look at it."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_resolved(experiment, Path(folder))
        async with WatchedRun((str(path),), every_s=LOOK_S) as watched:
            began_s = await watched.trains()
            server = watched.process("data-1")
            first = last = _cpu_s(server)
            looked_s = began_s
            ended = asyncio.ensure_future(watched.result())
            while not ended.done():
                await asyncio.wait([ended], timeout=LOOK_S)
                found = _cpu_s(server)
                if found:
                    last, looked_s = found, asyncio.get_running_loop().time()
            return await ended | {"data_server_cores": (last - first) / max(looked_s - began_s, LOOK_S)}


def _cpu_s(process: psutil.Process) -> float:
    """Returns the processor time that a process has used; 0 if it has ended."""
    try:
        taken = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(taken.user + taken.system)

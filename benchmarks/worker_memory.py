"""Peak resident memory of workers: what runs take against the formula, and a network that only partitions can hold.

    python benchmarks/worker_memory.py formula [EXP.toml ...] [--seconds 15] [--json]
    python benchmarks/worker_memory.py bar [--seconds 60] [--json]

`formula` trains each experiment (none: speech, imagenet, and three dense layers of 4096) on made-up examples, in one
process and in two partitions, and compares the peak of each worker with what `adamctl plan` says. `bar` takes a network
whose one-process state is 2.8 GB, and workers that may have 1.2 GiB of resident memory each: in a control group of
their own (v1 or v2) where that may be made, else watched and killed beyond it. One worker is refused, and told how many
partitions fit. Four partitions train, and the loss falls.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np
import psutil

from adamctl.bench.control_groups import ControlGroups, control_groups
from adamctl.bench.report import make_report
from adamctl.bench.watched_run import WatchedRun
from adamctl.config.data import DataConfig
from adamctl.config.experiment import ClusterConfig, Experiment, OptimizerConfig, TrainConfig
from adamctl.config.load import load_experiment
from adamctl.config.partitioning import plan_of
from adamctl.config.resolved import write_resolved
from adamctl.errors import AdamctlError
from adamctl.launch.partitions import Place
from adamctl.launch.reckoning import Machine
from adamctl.model.description import Dense, Model, Softmax
from adamctl.model.partition.search import largest_bytes
from adamctl.model.partition.work import SLOTS_IN_USE, SLOTS_PER_THREAD

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
USUAL = [str(EXAMPLES / f"{name}.toml") for name in ("speech", "imagenet")]
LIMIT_BYTES = round(1.2 * (1 << 30))
LIMIT = "1.2GiB"
UNITS, WIDE, INPUTS, CLASSES = 7100, 4096, 1024, 10
EVALUATE_EVERY = {"formula": 0.05, "bar": 0.008}
"""So often that the vector of an evaluation is in memory within seconds."""
LOOK_S = 0.05
DATA_BYTES = 64 << 20


@dataclass
class Seen:
    """What was seen of one worker: its peak of resident memory, in bytes, and whether it was killed for it."""

    peak_bytes: int = 0
    killed: bool = False


@dataclass
class Watch:
    """Looks at the workers of a command; with a limit, kills what exceeds it, or has a control group do so."""

    limit_bytes: int | None = None
    groups: ControlGroups | None = None
    seen: dict[int, Seen] = field(default_factory=dict)

    async def look(self, pid: int) -> None:
        while True:
            for worker in _workers(pid):
                with suppress(OSError, psutil.Error):
                    self._look_at(worker)
            await asyncio.sleep(LOOK_S)

    def _look_at(self, worker: psutil.Process) -> None:
        if worker.pid not in self.seen:
            self.seen[worker.pid] = Seen()
            if self.groups is not None:
                self.groups.limit_memory(str(worker.pid), worker.pid, self.limit_bytes or 0)
        seen = self.seen[worker.pid]
        status = Path(f"/proc/{worker.pid}/status").read_text()
        peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        seen.peak_bytes = max(seen.peak_bytes, int(peak.split()[1]) << 10)
        if self.groups is None and self.limit_bytes is not None and seen.peak_bytes > self.limit_bytes:
            seen.killed = True
            worker.kill()


def _workers(pid: int) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return [child for child in psutil.Process(pid).children() if " worker start" in " ".join(child.cmdline())]
    return []


def made_up(model: Model, folder: Path) -> DataConfig:
    """Writes examples that can be told apart, each near the centre of its class."""
    generator, inputs = np.random.default_rng(7), int(np.prod(model.input))
    count = max(512, min(20_000, DATA_BYTES // (4 * inputs)))
    centres = generator.standard_normal((CLASSES, *model.input), np.float32)
    arrays: dict[str, Any] = {}
    for name, size in (("train", count), ("test", 256)):
        labels = generator.integers(0, CLASSES, size)
        noise = generator.standard_normal((size, *model.input), np.float32)
        arrays[f"x_{name}"], arrays[f"y_{name}"] = centres[labels] + noise, labels
    np.savez(folder / "examples.npz", **arrays)
    return DataConfig(format="npz", source=str(folder / "examples.npz"), scale="none")


async def watched(file: Path, seconds: float, watch: Watch, *arguments: str) -> dict[str, Any]:
    """Trains for so long; returns the losses of the first and the last look, and the peaks."""
    async with WatchedRun((str(file), *arguments)) as run:
        looking = asyncio.create_task(watch.look(run.pid))
        try:
            began_s = await run.trains()
            losses: list[float] = []
            while time.monotonic() < began_s + seconds and not (run.progress and run.progress.final):
                if run.progress is not None and run.progress.loss is not None:
                    losses.append(run.progress.loss)
                await asyncio.sleep(0.5)
        finally:
            looking.cancel()
        assert run.progress is not None
        return {
            "images_per_s": round(run.progress.images_per_s, 1),
            "first_loss": losses[0] if losses else None,
            "last_loss": losses[-1] if losses else None,
            "peak_bytes": [seen.peak_bytes for seen in watch.seen.values()],
            "killed": sum(seen.killed for seen in watch.seen.values()),
        }


def needed_bytes(experiment: Experiment, slots: int = SLOTS_IN_USE) -> int:
    """Returns what the formula says of the largest worker, with so many slots of each thread or flight in use."""
    conditions = Place(Machine.here()).conditions(experiment, experiment.cluster.workers)
    return largest_bytes(plan_of(experiment), replace(conditions, slots=slots))


def formula(experiments: Sequence[Experiment], seconds: float) -> Iterator[dict[str, Any]]:
    """Yields a row for each experiment and number of partitions."""
    for loaded in experiments:
        for workers, threads in ((1, 1), (1, 2), (2, 1)):
            with tempfile.TemporaryDirectory() as place:
                cluster = msgspec.structs.replace(
                    loaded.cluster, workers=workers, partitions=workers, threads=threads, store="none"
                )
                train = msgspec.structs.replace(loaded.train, evaluate_every=EVALUATE_EVERY["formula"])
                data = made_up(loaded.model, Path(place))
                made = msgspec.structs.replace(loaded, cluster=cluster, train=train, data=data)
                found = asyncio.run(watched(write_resolved(made, Path(place)), seconds, Watch()))
            needed = needed_bytes(made)
            yield {
                "experiment": loaded.name,
                "partitions": workers,
                "threads": threads,
                "formula_bytes": needed,
                "with_slow_servers_bytes": needed_bytes(made, SLOTS_PER_THREAD),
                **found,
                "ratio": round(max(found["peak_bytes"]) / needed, 3),
            }


def dense(name: str, units: int, partitions: int, batch: int, steps_per_push: int) -> Experiment:
    """Returns a network of three wide layers."""
    model = Model((INPUTS,), (*(Dense(units, activation="relu") for _ in range(3)), Softmax(CLASSES)))
    return Experiment(
        name=name, model=model, optimizer=OptimizerConfig(lr=0.003),
        train=TrainConfig(
            passes=100, batch=batch, n_push=steps_per_push, n_fetch=steps_per_push, evaluate_every=EVALUATE_EVERY["bar"]
        ),
        cluster=ClusterConfig(workers=partitions, partitions=partitions, threads=1, store="none"),
    )  # fmt: skip


def bar(seconds: float) -> Iterator[dict[str, Any]]:
    """Yields what one worker is told, what it would take, and how four partitions train."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        one, four = (dense("large", UNITS, partitions, 16, 4) for partitions in (1, 4))
        data = made_up(one.model, folder)
        one, four = (msgspec.structs.replace(experiment, data=data) for experiment in (one, four))
        file = write_resolved(one, folder)
        limit = ("--set", f'cluster.memory_per_worker="{LIMIT}"')
        command = (sys.executable, "-m", "adamctl", "train", str(file), "--run-dir", place, *limit)
        refused = subprocess.run(command, capture_output=True, text=True, check=False)
        yield {
            "what": "one worker with the limit",
            "exit_code": refused.returncode,
            "message": refused.stderr.strip().splitlines()[-1],
            "formula_bytes": needed_bytes(one),
        }
        yield {"what": "one worker without a limit", **asyncio.run(watched(file, seconds / 2, Watch()))}
        with control_groups("memory") as groups:
            watch = Watch(LIMIT_BYTES, groups)
            found = asyncio.run(watched(write_resolved(four, folder), seconds, watch, *limit))
        yield {
            "what": "four partitions with the limit",
            "limited_by": "a watchdog" if groups is None else "a control group",
            "limit_bytes": LIMIT_BYTES,
            "within_limit": bool(found["peak_bytes"]) and max(found["peak_bytes"]) <= LIMIT_BYTES,
            "formula_bytes": needed_bytes(four),
            **found,
        }


@click.command(help=__doc__)
@click.argument("what", type=click.Choice(("formula", "bar")))
@click.argument("files", nargs=-1, type=click.Path(exists=True))
@click.option("--seconds", default=15.0, show_default=True, help="Of training, for each run.")
@click.option("--json", "as_json", is_flag=True)
def main(what: str, files: tuple[str, ...], seconds: float, as_json: bool) -> None:
    rows = []
    try:
        experiments = [load_experiment(file).experiment for file in files or USUAL]
        if not files:
            experiments.append(dense("wide", WIDE, 1, 64, 1))
        for row in formula(experiments, seconds) if what == "formula" else bar(seconds):
            rows.append(row)
            if not as_json:
                click.echo("  ".join(f"{name} {value}" for name, value in row.items()))
    except AdamctlError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps(make_report("worker-memory", ("adamctl", "numpy", "numba"), rows), indent=2))


if __name__ == "__main__":
    main()

"""Training throughput while parameter servers change: one is killed, or one comes and another one is drained.

Each round is two runs of `adamctl train` with three servers and three copies: one to which it happens, and one that is
left alone and measured at the same times. Examples per second are counted by the clock on the wall.

    kill    kill -9 of one of the servers, which `adamctl train` starts again: from ten seconds after, against before;
            and the accuracy at the end of the run
    move    a fourth server is started, and when it has its share the first is drained: from the start of the fourth
            until the first holds nothing, against before (and of this the part from the first change of any bucket,
            as the fourth waits a while for things to settle); the fewest copies in sync that a bucket ever had

    python benchmarks/training_under_change.py --change kill|move [--experiment EXP.toml] [--rounds 3] [--json]
                                               [TRAIN_OPTION ...]

Without --experiment it is the handwritten digits that install with scikit-learn. TRAIN_OPTION: such as --data DIR.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import click

from adamctl.bench.failover.cluster import buckets_of, wait_whole
from adamctl.bench.report import make_report
from adamctl.bench.role_processes import connect_store
from adamctl.bench.watched_run import WatchedRun, examples_per_s
from adamctl.config.records import BucketRecord, decode
from adamctl.errors import AdamctlError, RunFailedError
from adamctl.roles.configuration import ConfigurationStore, follow

DIGITS = Path(__file__).resolve().parent.parent / "examples" / "digits.toml"
SERVERS = 3
KILLED, FOURTH, DRAINED = "ps-2", "ps-4", "ps-1"
WARM_S = 3.0
AFTER_KILL_S = 10.0
TAIL_S = 3.0
WAIT_S = 120.0
LOOK_S = 0.1
ENOUGH_PASSES = 100_000
BARS = {"kill": 0.9, "move": 0.7}


@dataclass(frozen=True)
class Settings:
    """What is run; `seconds` is how long throughput is measured before, and after a kill."""

    change: str
    experiment: str
    seconds: float
    arguments: tuple[str, ...]


class Windows(NamedTuple):
    """What is compared with what: beginnings and ends, in seconds since training began."""

    before: tuple[float, float]
    changed: tuple[float, float]


@dataclass
class Outcome:
    """What one run did in its windows.

    Attributes:
        moving_per_s: throughput in the latter window from when buckets moved; None: they did not.
        top1: if the run went to its end.
    """

    windows: Windows
    before_per_s: float
    changed_per_s: float
    moving_per_s: float | None
    fewest_copies: int
    top1: float | None = None

    @property
    def ratio(self) -> float:
        return self.changed_per_s / self.before_per_s


class Copies:
    """Follows the records of all buckets of a run.

    Attributes:
        fewest: copies in sync that any of them ever had.
        changed_s: when any of them changed, by `time.monotonic()`.
    """

    def __init__(self, store: ConfigurationStore, job: str) -> None:
        self.fewest = SERVERS
        self.changed_s: list[float] = []
        self._task = asyncio.create_task(self._follow(store, job))

    async def _follow(self, store: ConfigurationStore, job: str) -> None:
        async for changes in follow(store, f"/jobs/{job}/buckets/"):
            records = [decode(entry.value, BucketRecord) for entry in changes.entries]
            self.fewest = min([self.fewest, *(len(record.in_sync) for record in records)])
            self.changed_s.append(time.monotonic())

    async def close(self) -> None:
        """Raises what ended the following before its time."""
        if self._task.done():
            self._task.result()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


# --- what happens -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def command(*arguments: str, token: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Runs an `adamctl` command for as long as the block lasts, at most."""
    with tempfile.TemporaryDirectory() as folder:
        quiet = asyncio.subprocess.DEVNULL
        line = (sys.executable, "-m", "adamctl", *arguments)
        environment = {**os.environ, "ADAMCTL_TOKEN": token}
        process = await asyncio.create_subprocess_exec(
            *line, cwd=folder, stdin=quiet, stdout=quiet, stderr=quiet, env=environment
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()


async def fourth_has_its_share(store: ConfigurationStore, job: str) -> None:
    """Returns when the fourth server has about as many copies as each other."""
    async with asyncio.timeout(WAIT_S):
        while True:
            records = list((await buckets_of(store, job)).values())
            held = sum(FOURTH in record.in_sync for record in records)
            if held >= len(records) * SERVERS // (SERVERS + 1) - 2:
                return
            await asyncio.sleep(LOOK_S)


@asynccontextmanager
async def moving(run: WatchedRun, store: ConfigurationStore) -> AsyncIterator[None]:
    """A fourth server comes and the first one is drained; it is there for as long as the block lasts."""
    controller = (await run.address("controller")).removeprefix("tcp://")
    async with command("ps", "start", "--name", FOURTH, "--controller", controller, token=run.token):
        await fourth_has_its_share(store, run.job)
        drained = command("drain", DRAINED, "--controller", controller, token=run.token)
        async with drained as drain, asyncio.timeout(WAIT_S):
            if await drain.wait():
                raise RunFailedError(f"adamctl drain {DRAINED} failed: exit status {drain.returncode}")
        yield


# --- one run ----------------------------------------------------------------------------------------------------------


def train_arguments(settings: Settings, passes: int) -> tuple[str, ...]:
    """Returns what follows `adamctl train`: nothing is evaluated or written before the end."""
    values = {"cluster.ps": SERVERS, "cluster.replication": SERVERS, "train.passes": passes}
    values |= {"train.evaluate_every": passes, "train.checkpoint_every": passes}
    chosen = (part for name, value in values.items() for part in ("--set", f"{name}={value}"))
    return (settings.experiment, *chosen, *settings.arguments)


async def one_run(settings: Settings, passes: int, alone: Windows | None) -> Outcome:
    """Runs once. `alone`: nothing happens to this run, and it is measured at these times."""
    async with WatchedRun(train_arguments(settings, passes)) as run:
        began_s = await run.trains()
        store = connect_store(await run.address("controller"), token=run.token)
        copies = Copies(store, run.job)
        try:
            await wait_whole(store, run.job, SERVERS, WAIT_S)
            windows = alone if alone is not None else await change(settings, run, store, began_s)
            await asyncio.sleep(began_s + windows.changed[1] + 2 * LOOK_S - time.monotonic())
        finally:
            await copies.close()
            await store.close()
        (before_s, stop_s), (start_s, end_s) = ((began_s + start, began_s + stop) for start, stop in windows)
        before = examples_per_s(run.samples, before_s, stop_s)
        changed = examples_per_s(run.samples, start_s, end_s)
        moved_s = next((at_s for at_s in copies.changed_s if start_s < at_s < end_s), None)
        moving = examples_per_s(run.samples, moved_s, end_s) if moved_s is not None else None
        outcome = Outcome(windows, before, changed, moving, copies.fewest)
        if settings.change == "kill":
            outcome.top1 = float((await run.result())["best_test_top1"])
        return outcome


async def change(settings: Settings, run: WatchedRun, store: ConfigurationStore, began_s: float) -> Windows:
    """Lets it happen, and returns the windows to be compared."""
    await asyncio.sleep(WARM_S)
    start_s = time.monotonic() - began_s
    await asyncio.sleep(settings.seconds)
    before = (start_s, time.monotonic() - began_s)
    if settings.change == "kill":
        run.kill(KILLED)
        start_s = time.monotonic() - began_s + AFTER_KILL_S
        return Windows(before, (start_s, start_s + settings.seconds))
    async with moving(run, store):
        changed = (before[1], time.monotonic() - began_s)
        await asyncio.sleep(2 * LOOK_S)  # the sample that ends the window
        return Windows(before, changed)


async def passes_for(settings: Settings) -> int:
    """Returns how many passes a run needs to be long enough for a kill in its middle; runs for some seconds."""
    if settings.change != "kill":
        return ENOUGH_PASSES
    async with WatchedRun(train_arguments(settings, ENOUGH_PASSES)) as run:
        start_s = await run.trains() + WARM_S
        await asyncio.sleep(start_s + WARM_S + 2 * LOOK_S - time.monotonic())
        per_s = examples_per_s(run.samples, start_s, start_s + WARM_S)
        assert run.progress is not None
        per_pass = run.progress.examples_total / ENOUGH_PASSES
    needed_s = WARM_S + 2 * settings.seconds + AFTER_KILL_S + TAIL_S
    return math.ceil(1.3 * needed_s * per_s / per_pass)


# --- all rounds -------------------------------------------------------------------------------------------------------


async def rounds_of(settings: Settings, rounds: int, as_json: bool) -> list[dict[str, Any]]:
    """Returns what each round found, and tells it at once."""
    passes = await passes_for(settings)
    found = []
    for number in range(1, rounds + 1):
        changed = await one_run(settings, passes, None)
        alone = await one_run(settings, passes, changed.windows)
        found.append(
            {
                "round": number,
                "before_per_s": changed.before_per_s,
                "changed_per_s": changed.changed_per_s,
                "ratio": changed.ratio,
                "ratio_left_alone": alone.ratio,
                "ratio_moving": changed.moving_per_s / changed.before_per_s if changed.moving_per_s else None,
                "changed_s": changed.windows.changed[1] - changed.windows.changed[0],
                "fewest_copies": changed.fewest_copies,
                "top1": changed.top1,
                "top1_left_alone": alone.top1,
            }
        )
        if not as_json:
            shown = (f"{key}={value:.4g}" for key, value in found[-1].items() if value is not None)
            click.echo(" ".join(shown))
    return found


@click.command(context_settings={"ignore_unknown_options": True}, help=__doc__)
@click.option("--change", type=click.Choice(sorted(BARS)), required=True)
@click.option("--experiment", default=str(DIGITS), metavar="EXP.toml")
@click.option("--seconds", default=10.0, show_default=True, help="How long throughput is measured before.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--json", "as_json", is_flag=True)
@click.argument("train_options", nargs=-1, type=click.UNPROCESSED)
def main(
    change: str, experiment: str, seconds: float, rounds: int, as_json: bool, train_options: tuple[str, ...]
) -> None:
    settings = Settings(change, str(Path(experiment).resolve()), seconds, train_options)
    try:
        found = asyncio.run(rounds_of(settings, rounds, as_json))
    except AdamctlError as error:
        raise click.ClickException(str(error)) from error
    ratio = statistics.median(one["ratio"] for one in found)
    alone = statistics.median(one["ratio_left_alone"] for one in found)
    summary = {"change": change, "ratio": ratio, "ratio_left_alone": alone, "bar": BARS[change]}
    if as_json:
        report = make_report("training-under-change", ("adamctl", "numpy", "numba"), found)
        click.echo(json.dumps(report | summary, indent=2))
        return
    fewest = min(one["fewest_copies"] for one in found)
    click.echo(
        f"{change}: median {ratio:.2f} of the throughput before (left alone: {alone:.2f}; wanted: {BARS[change]:g}); "
        f"never fewer than {fewest} copies in sync"
    )


if __name__ == "__main__":
    main()

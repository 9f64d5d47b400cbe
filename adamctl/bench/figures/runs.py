"""The real commands as processes, each with one JSON result; trainings on emulated machines."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import adamctl
from adamctl.bench.control_groups import ControlGroups
from adamctl.bench.figures.machines import BESIDE_CORES, check_machines
from adamctl.bench.watched_run import WatchedRun, failure
from adamctl.errors import AdamctlError, ConfigurationError, RunFailedError
from adamctl.net import loop
from adamctl.net.address import TRANSPORT_VARIABLE

EVERY_S = 0.5
INTERRUPTED_S, END_S = 1.0, 30.0
"""That a command has to end once it was interrupted from outside, and by this process."""
TIME, DIVERGED = "time", "diverged"
NOT_FINITE = "no longer finite"
"""What the error of a run that diverges says (`adamctl.roles.worker.divergence`)."""
LEFT_OUT = frozenset({"run_folder"})
"""Of a result: what is gone when it is read."""


@dataclass(frozen=True)
class Training:
    """One run of `adamctl train`.

    Attributes:
        experiment: the file.
        settings: as `--set`, such as `train.passes`.
        seed: of the run.
        machines: cores of each machine, by node, such as `worker-1`; all other roles share `beside_cores`. Its
            processes then use TCP, since machines share no memory. None: no share, and any transport.
        data: folders in which data are looked up.
        kept: where the run's folder is copied to when it has ended, for its checkpoints; None: it is gone.
        seconds_most: of training, after which it is stopped; None: it ends by itself.
        may_diverge: a run whose loss is no longer finite is a result, too, with what it had until then.
    """

    experiment: Path
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 1
    machines: Mapping[str, float] | None = None
    beside_cores: float = BESIDE_CORES
    data: tuple[str, ...] = ()
    kept: Path | None = None
    seconds_most: float | None = None
    may_diverge: bool = False

    @property
    def arguments(self) -> tuple[str, ...]:
        """What follows `adamctl train`."""
        folders = [part for one in self.data for part in ("--data", str(Path(one).absolute()))]
        keys = [part for key, value in self.settings.items() for part in ("--set", f"{key}={toml_value(value)}")]
        return str(self.experiment.absolute()), "--seed", str(self.seed), *folders, *keys


def train(training: Training, groups: ControlGroups | None = None) -> dict[str, Any]:
    """Trains, and returns `result`, what the command printed, and `evaluations` and `progress`, lines of metrics.jsonl.

    `ended` is `time` or `diverged`, and then `result` is empty; else the state that the run has ended in.

    Machines get their shares of cores once they serve: they need not start with them.

    Args:
        groups: for the shares (`adamctl.bench.figures.machines.core_shares`).

    Raises:
        ConfigurationError: machines have more cores than there are for them, or the command ends with exit code 2.
        RunFailedError: the run fails otherwise.
    """
    if training.machines is not None:
        if groups is None:
            raise ConfigurationError("a training on machines: expected control groups; found none")
        check_machines(training.machines, training.beside_cores)
    return loop.run(_train(training, groups))


def train_several(
    trainings: Mapping[str, Training], at_a_time: int, ended: Callable[[str, Mapping[str, Any]], None]
) -> None:
    """Trains runs without machines, so many at a time, and tells what `train` returns of each as soon as it has ended.

    Raises:
        ConfigurationError: a command ends with exit code 2, such as for want of data; those beside it are ended.
        RunFailedError: a run fails otherwise; likewise.
    """
    loop.run(_train_several(trainings, at_a_time, ended))


async def _train_several(
    trainings: Mapping[str, Training], at_a_time: int, ended: Callable[[str, Mapping[str, Any]], None]
) -> None:
    places = asyncio.Semaphore(at_a_time)

    async def one(key: str, training: Training) -> None:
        async with places:
            ended(key, await _train(training, None))

    try:
        async with asyncio.TaskGroup() as tasks:
            for key, training in trainings.items():
                tasks.create_task(one(key, training))
    except* AdamctlError as failures:
        raise failures.exceptions[0] from None


async def _train(training: Training, groups: ControlGroups | None) -> dict[str, Any]:
    environment = {} if training.machines is None else {TRANSPORT_VARIABLE: "tcp"}
    async with WatchedRun(training.arguments, every_s=EVERY_S, environment=environment) as run:
        if training.machines is not None and groups is not None:
            for node, cores in training.machines.items():
                await run.address(node)
                groups.share_cores(f"{run.pid}-{node}", run.process(node).pid, cores)
            beside = [one.pid for node, one in run.processes().items() if node not in training.machines]
            groups.share_together(beside, training.beside_cores)
        ended, result = await over(run, training)
        if training.kept is not None:
            shutil.copytree(run.run_folder, training.kept, dirs_exist_ok=True)
        return {
            "result": {key: value for key, value in result.items() if key not in LEFT_OUT},
            "ended": ended,
            "evaluations": run.records("evaluation"),
            "progress": run.records("progress"),
        }


async def over(run: WatchedRun, training: Training) -> tuple[str, dict[str, Any]]:
    """Waits for the end of a run, or of its time; returns how it ended, and what it printed."""
    while training.seconds_most is not None and not run.has_ended:
        if run.progress is not None and run.progress.train_seconds >= training.seconds_most:
            return TIME, {}
        await asyncio.sleep(EVERY_S)
    try:
        result = await run.result()
    except RunFailedError as error:
        if training.may_diverge and NOT_FINITE in str(error):
            return DIVERGED, {}
        raise
    return str(result["state"]), result


def command(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Runs `adamctl ARGUMENTS --json` and returns what it prints.

    Raises:
        ConfigurationError: it ends with exit code 2.
        RunFailedError: it ends with another one.
    """
    line = (sys.executable, "-m", "adamctl", *arguments, "--json")
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL,
        env={**os.environ, **(environment or {})},
    ) as process:  # fmt: skip
        try:
            printed, said = process.communicate()
        except BaseException:
            _end(process)
            raise
    if process.returncode:
        raise failure(f"adamctl {' '.join(arguments)}", process.returncode, said)
    found: dict[str, Any] = json.loads(printed)
    return found


def _end(process: subprocess.Popen[str]) -> None:
    """Lets a command take down what it has started: a terminal has interrupted it, too; else it is done here."""
    try:
        for wait_s in (INTERRUPTED_S, END_S):
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=wait_s)
                return
            process.send_signal(signal.SIGINT)
    finally:
        process.kill()
        process.wait()


def example(name: str) -> Path:
    """Returns one of the experiments in `examples`.

    Raises:
        ConfigurationError: this is no checkout, and has none.
    """
    path = Path(adamctl.__file__).resolve().parent.parent / "examples" / name
    if not path.is_file():
        raise ConfigurationError(f"expected {path}, an example of the repository; found none: run it from a checkout")
    return path


def edited(name: str, path: Path, *changes: tuple[str, str]) -> Path:
    """Writes an example with some of its text replaced, every time that it is there, and returns the file.

    Raises:
        ConfigurationError: the example is not there, or has not that text.
    """
    text = example(name).read_text(encoding="utf-8")
    for old, new in changes:
        if old not in text:
            raise ConfigurationError(f"examples/{name}: expected {old!r} in it; found no such text")
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    return path


def toml_value(value: Any) -> str:
    """Returns a value as `--set` takes it."""
    return json.dumps(value) if isinstance(value, (bool, list, tuple)) else str(value)

"""The real commands run as processes, and trainings on machines with shares of cores."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import psutil
import pytest

from adamctl.bench.control_groups import ControlGroups, control_groups
from adamctl.bench.figures import runs
from adamctl.bench.figures.machines import core_shares
from adamctl.bench.figures.runs import Training, command, example, train, train_several
from adamctl.errors import AdamctlError, ConfigurationError, RunFailedError
from adamctl.roles.coordinator.core.progress import RunProgress
from adamctl.roles.worker.divergence import DivergedError

if TYPE_CHECKING:
    from adamctl.bench.watched_run import WatchedRun

NAN = str(DivergedError.at(0.1))


def test_a_training_is_a_command_line(tmp_path: Path) -> None:
    training = Training(
        tmp_path / "e.toml", {"train.passes": 2, "optimizer.lr": 0.1, "train.bounded": True, "cluster.list": [1, 2]},
        seed=3, data=(str(tmp_path),),
    )  # fmt: skip
    assert training.arguments == (
        str(tmp_path / "e.toml"), "--seed", "3", "--data", str(tmp_path), "--set", "train.passes=2", "--set",
        "optimizer.lr=0.1", "--set", "train.bounded=true", "--set", "cluster.list=[1, 2]",
    )  # fmt: skip


def test_examples_are_found_and_one_that_is_not_there_is_refused() -> None:
    assert example("mnist.toml").read_text().startswith("#")
    with pytest.raises(ConfigurationError, match="an example of the repository; found none"):
        example("no-such.toml")


def test_machines_without_groups_or_with_too_many_cores_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="expected control groups"):
        train(Training(example("digits.toml"), machines={"worker-1": 0.4}))


def test_a_command_that_ends_with_2_is_bad_input_and_says_why() -> None:
    with pytest.raises(
        ConfigurationError, match=r"adamctl summary no-such\.toml: exit status 2:\n.*no such experiment"
    ):
        command(("summary", "no-such.toml"))


CLEANS_UP = """#!/bin/sh
trap 'sleep 0.6; echo gone >"$FOLDER/gone"; exit 130' INT
echo >"$FOLDER/started"
while :; do sleep 0.1; done
"""


@pytest.mark.parametrize("is_terminal", [False, True])
def test_an_interrupted_command_takes_down_what_it_has_started(
    is_terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "python"
    script.write_text(CLEANS_UP)
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setattr(runs, "INTERRUPTED_S", 30.0 if is_terminal else 0.1)

    def interrupt() -> None:
        until_s = time.monotonic() + 20
        while not (tmp_path / "started").is_file() and time.monotonic() < until_s:
            time.sleep(0.01)
        for child in psutil.Process().children() if is_terminal else ():
            if str(script) in child.cmdline():
                child.send_signal(signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            command(("bench",), {"FOLDER": str(tmp_path)})
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert (tmp_path / "gone").is_file()
    assert not [child for child in psutil.Process().children() if str(script) in child.cmdline()]


class FakeRun:
    """A run that has trained for 3 s more at every look, and ends after `ends_s`."""

    def __init__(self, ends_s: float, failure: str = "") -> None:
        self._trained_s, self._ends_s, self._failure = 0.0, ends_s, failure

    @property
    def progress(self) -> RunProgress | None:
        self._trained_s += 3.0
        return RunProgress(state="training", job="fake", passes_total=1, train_seconds=self._trained_s)

    @property
    def has_ended(self) -> bool:
        return self._trained_s >= self._ends_s

    async def result(self) -> dict[str, str]:
        if self._failure:
            raise RunFailedError(self._failure)
        return {"state": "ended"}


@pytest.mark.parametrize(
    ("ends_s", "failure", "seconds_most", "ended"),
    [(100, "", 6, "time"), (3, "", 30, "ended"), (100, "", None, "ended"), (3, NAN, 30, "diverged")],
)
async def test_how_a_run_ended(
    ends_s: float, failure: str, seconds_most: float | None, ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "EVERY_S", 0.0)
    training = Training(example("digits.toml"), seconds_most=seconds_most, may_diverge=True)
    found, result = await runs.over(cast("WatchedRun", FakeRun(ends_s, failure)), training)
    assert found == ended and bool(result) == (ended == "ended")


@pytest.mark.parametrize(("failure", "may_diverge"), [("no space left", True), (NAN, False)])
async def test_a_run_that_fails_is_no_result(failure: str, may_diverge: bool) -> None:
    training = Training(example("digits.toml"), may_diverge=may_diverge)
    with pytest.raises(RunFailedError, match=failure[:10]):
        await runs.over(cast("WatchedRun", FakeRun(3, failure)), training)


def test_a_loss_that_is_not_finite_is_told_as_it_is_read_here() -> None:
    assert runs.NOT_FINITE in NAN


def test_several_are_trained_so_many_at_a_time_and_told_as_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once: list[int] = []
    ended: dict[str, Any] = {}

    async def trained(training: Training, groups: ControlGroups | None) -> dict[str, Any]:
        at_once.append((at_once[-1] if at_once else 0) + 1)
        await asyncio.sleep(0)
        at_once.append(at_once[-1] - 1)
        return {"seed": training.seed}

    monkeypatch.setattr(runs, "_train", trained)
    train_several({f"seed-{seed}": Training(Path("e.toml"), seed=seed) for seed in range(5)}, 2, ended.__setitem__)
    assert ended == {f"seed-{seed}": {"seed": seed} for seed in range(5)}
    assert max(at_once) == 2


@pytest.mark.parametrize("kind", [RunFailedError, ConfigurationError])
def test_of_several_the_one_that_fails_is_told_and_those_beside_it_are_ended(
    kind: type[AdamctlError], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: dict[str, Any] = {}

    async def trained(training: Training, groups: ControlGroups | None) -> dict[str, Any]:
        if training.seed == 2:
            raise kind("the second one")
        await asyncio.sleep(60 if training.seed == 3 else 0)
        return {"seed": training.seed}

    monkeypatch.setattr(runs, "_train", trained)
    with pytest.raises(kind, match="the second one"):
        train_several({f"{seed}": Training(Path("e.toml"), seed=seed) for seed in (1, 2, 3)}, 1, ended.__setitem__)
    assert list(ended) == ["1"]


@pytest.mark.slow
def test_a_training_on_machines_has_its_shares_and_a_result(tmp_path: Path) -> None:
    with control_groups("cpu") as made:
        if made is None:
            pytest.skip("needs a control group for processor time that this user may write to")
    machines, kept = {"worker-1": 0.5, "ps-1": 0.3}, tmp_path / "kept"
    training = Training(example("digits.toml"), {"train.passes": 2, "cluster.threads": 1}, machines=machines, kept=kept)
    with core_shares() as groups:
        found = train(training, groups)
    assert found["result"]["passes"] == 2 and found["evaluations"] and found["progress"]
    assert (kept / "metrics.jsonl").is_file()

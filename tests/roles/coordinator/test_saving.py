"""A checkpoint on request: written while training goes on, and answered when it is finished."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from adamctl.cli.cluster.access import running_job
from adamctl.errors import ConfigurationError
from adamctl.roles.coordinator.checkpoint import manifest
from adamctl.roles.coordinator.core import events
from adamctl.roles.coordinator.core.instructions import Finished, Instruction, Refuse, Saved
from adamctl.roles.coordinator.core.run_core import RunCore
from adamctl.wire.constants import ErrorCode
from tests.roles.coordinator.played_run import make_experiment, until, world
from tests.roles.coordinator.simulation import PLAN, Simulation, plan


class Wanting(Simulation):
    """A simulation in which somebody asks for checkpoints; notes what each token was told."""

    def __init__(self, *arguments: object, **options: object) -> None:
        self.told: dict[int, int] = {}
        super().__init__(*arguments, **options)  # type: ignore[arg-type]

    def want(self) -> int:
        self.last_token += 1
        token = self.last_token
        self.step(events.CheckpointWanted(token))
        return token

    def _carry_out(self, instruction: Instruction) -> None:
        if isinstance(instruction, Saved):
            self.told[instruction.token] = instruction.number
        elif isinstance(instruction, Refuse) and instruction.token not in self.tokens:
            self.told[instruction.token] = -instruction.code
        else:
            super()._carry_out(instruction)


def test_it_is_begun_at_once_and_nothing_waits_for_it() -> None:
    run = Wanting(21, plan(checkpoint_every=0.0), examples=2000)
    run.add_worker("w")
    for _ in range(6):
        run.advance()
    token = run.want()
    assert len(run.checkpoints) == 1 and run.core.run.state == "training"
    handed_out = len(run.handed_out)
    run.until(lambda: token in run.told)
    assert run.told[token] == 1
    assert len(run.handed_out) > handed_out
    run.run()
    assert [snapshot.checkpoint for snapshot in run.checkpoints] == [1, 2]


def test_one_asked_for_while_another_is_written_shows_the_run_as_it_was_after_the_request() -> None:
    run = Wanting(22, plan(checkpoint_every=0.0), examples=2000)
    run.add_worker("w")
    for _ in range(6):
        run.advance()
    first = run.want()
    second, third = run.want(), run.want()
    assert len(run.checkpoints) == 1
    run.until(lambda: third in run.told)
    assert (run.told[first], run.told[second], run.told[third]) == (1, 2, 2)


def test_during_an_evaluation_it_does_not_wait() -> None:
    run = Wanting(23)
    run.add_worker("w")
    run.until(lambda: run.core.run.state == "evaluating")
    run.want()
    assert run.checkpoints and run.checkpoints[-1].evaluation_due == 1.0


def test_towards_the_end_the_last_one_serves_and_afterwards_nothing_is_promised() -> None:
    run = Wanting(24, plan(passes=1, checkpoint_every=0.0))
    run.add_worker("w")
    run.until(lambda: run.core.run.state in ("finishing", "evaluating"))
    token = run.want()
    run.until(lambda: token in run.told)
    assert run.told[token] >= 1
    run.run()
    late = run.want()
    assert run.told[late] == -ErrorCode.RUN_ENDED


def test_a_failure_is_told_to_who_asked_and_the_run_goes_on() -> None:
    run = Wanting(25, plan(checkpoint_every=0.0), examples=2000)
    run.add_worker("w")
    run.advance()
    run.write_failure = "disk full"
    token = run.want()
    run.until(lambda: token in run.told)
    assert run.told[token] == -ErrorCode.INTERNAL and run.finished is None
    run.write_failure = ""
    run.run()
    assert run.finished == Finished("ended", "")


def test_a_run_that_fails_leaves_nobody_waiting() -> None:
    run = Wanting(26, plan(checkpoint_every=0.0))
    run.add_worker("w")
    first, second = run.want(), run.want()
    run.step(events.Failed("a server is gone"))
    assert run.told == {first: -ErrorCode.RUN_ENDED, second: -ErrorCode.RUN_ENDED}


def test_before_the_run_is_ready_it_is_too_early() -> None:
    (refused,) = RunCore(PLAN, 0.0).step(events.CheckpointWanted(1), 0.0)
    assert isinstance(refused, Refuse) and refused.code == ErrorCode.NOT_READY


async def test_a_real_one_while_a_worker_trains(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.start_servers(parameter=2)
        train = {"passes": 40, "checkpoint_every": 0.0}
        folder = await w.start_run(make_experiment(tmp_path, train=train, ps=2))
        front = await w.client()
        worker = await w.worker()
        assert (await running_job(w.cluster.client, None))[0] == "small"
        with pytest.raises(ConfigurationError, match="running: small"):
            await running_job(w.cluster.client, "another")
        training = asyncio.ensure_future(worker.work())
        await until(front, lambda progress: progress.examples > 0)
        number, place = await front.checkpoint(deadline_s=20.0)
        assert Path(place) == (folder / "checkpoints" / f"{number:06d}").absolute()
        saved = manifest.verify(Path(place))
        assert not saved.complete and saved.state.examples > 0
        await training
        await w.ended()

"""Real processes under a front: what ends a run, what does not, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from adamctl.errors import UnreachableError
from adamctl.launch.front import Front, Outcome
from adamctl.launch.roles import Ask, LocalRoles
from adamctl.launch.supervision import Stop, Supervision
from adamctl.live.reading import ProcessReading
from adamctl.net.stream import StreamTransport
from adamctl.roles.coordinator.client import CoordinatorClient
from adamctl.roles.coordinator.core.progress import RunProgress
from adamctl.roles.role_process import END_SIGNAL, RoleCommand

SCRIPT = Path(__file__).parent / "fake_role.py"
WAIT_S = 30.0


@dataclass(frozen=True)
class FakeRole(RoleCommand):
    behaviour: str = "serve"
    folder: str = ""

    def line(self) -> tuple[str, ...]:
        return (sys.executable, str(SCRIPT), self.behaviour, self.folder, "--name", self.node)


@dataclass
class Notes:
    """A reporter that remembers."""

    shown: list[RunProgress] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def show(self, progress: RunProgress, readings: Mapping[str, ProcessReading]) -> None:
        self.shown.append(progress)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def close(self) -> None: ...


@dataclass
class Run:
    """One run of fake roles, started by `running`."""

    folder: Path
    roles: LocalRoles
    supervision: Supervision
    reporter: Notes
    task: asyncio.Task[Outcome]

    async def until(self, condition: Callable[[], object]) -> None:
        def holds() -> object:
            if self.task.done():
                self.task.result()
                raise AssertionError("the run has ended")
            return condition()

        await _until(holds)

    async def until_training(self) -> None:
        await self.until(lambda: self.reporter.shown and not self.supervision.waiting_for)

    async def outcome(self) -> Outcome:
        return await asyncio.wait_for(asyncio.shield(self.task), WAIT_S)

    def tell(self, file: str, content: str = "") -> None:
        (self.folder / file).write_text(content)

    def starts(self, node: str) -> int:
        file = self.folder / f"{node}.starts"
        return len(file.read_text()) if file.exists() else 0


@asynccontextmanager
async def running(folder: Path, time_s: float = 0.0, **behaviours: str) -> AsyncIterator[Run]:
    """Starts a controller, a server of each kind, two workers and a coordinator, each serving unless told otherwise."""
    nodes = {
        "controller": "controller", "ps_1": "ps", "data_1": "data", "worker_1": "worker", "worker_2": "worker",
        "coordinator": "run",
    }  # fmt: skip
    commands = []
    for node, behaviour in nodes.items():
        role = node.partition("_")[0]
        chosen = behaviours.get(node, "run" if behaviour == "run" else "serve")
        commands.append(FakeRole(role, node, (), chosen, str(folder)))
    roles = LocalRoles(commands, folder, os.environ)
    reporter = Notes()
    supervision = Supervision({command.node: command.role for command in commands})
    front = Front(roles, supervision, "coordinator", StreamTransport(), reporter, time_s=time_s)
    before = set(psutil.Process().children(recursive=True))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    run = Run(folder, roles, supervision, reporter, asyncio.create_task(front.run()))
    try:
        yield run
    finally:
        if not run.task.done():
            run.task.cancel()
            await asyncio.wait([run.task])
        for number, handler in handlers.items():
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handler)
        left = [child for child in psutil.Process().children(recursive=True) if child not in before]
        assert [child.cmdline() for child in left if child.status() != psutil.STATUS_ZOMBIE] == []


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Short enough for a Unix socket in it."""
    import shutil
    import tempfile

    path = Path(tempfile.mkdtemp(prefix="adamctl-test-"))
    yield path
    shutil.rmtree(path)


async def test_a_run_that_ends_well(folder: Path) -> None:
    async with running(folder) as run:
        await run.until_training()
        run.tell("finish")
        outcome = await run.outcome()
    assert (outcome.exit_code, outcome.message) == (0, "")
    assert outcome.progress is not None and outcome.progress.result == {"run": "fake"}
    assert {node: end.status for node, end in run.roles.ends.items()} == dict.fromkeys(run.roles.ends, 0)
    left = (folder / "left").read_text().split()
    assert left[-1] == "controller" and set(left) == set(run.roles.ends)


async def test_a_role_that_does_not_answer_is_signalled_and_the_others_leave(folder: Path) -> None:
    async with running(folder, ps_1="deaf") as run:
        await run.until_training()
        run.tell("finish")
        outcome = await run.outcome()
    assert outcome.exit_code == 0
    statuses = {node: end.status for node, end in run.roles.ends.items()}
    assert statuses == dict.fromkeys(statuses, 0) | {"ps_1": -END_SIGNAL}
    note = "did not leave when asked, so ended by a signal: ps_1; the run was over, so nothing is lost"
    assert run.reporter.notes[-1] == note


async def test_a_role_that_neither_leaves_nor_heeds_signals_is_killed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adamctl.launch.front.STOP_GRACE_S", 0.1)
    monkeypatch.setattr("adamctl.launch.roles.SIGNAL_GRACE_S", 0.1)
    (folder / "stubborn").touch()
    async with running(folder) as run:
        await run.until_training()
        run.tell("finish")
        outcome = await run.outcome()
    assert outcome.exit_code == 0
    assert {end.status for end in run.roles.ends.values()} == {-signal.SIGKILL}


@pytest.mark.parametrize("node", ["worker_1", "data_1"])
async def test_a_killed_worker_or_data_server_is_started_again_and_the_run_goes_on(folder: Path, node: str) -> None:
    async with running(folder) as run:
        await run.until_training()
        os.kill(run.roles.pids()[node], signal.SIGKILL)
        await run.until(lambda: run.starts(node) == 2)
        run.tell("finish")
        outcome = await run.outcome()
    assert outcome.exit_code == 0
    assert f"{node} ended: killed by SIGKILL; restarting it" in run.reporter.notes


async def test_a_killed_server_ends_the_run_with_the_cause(folder: Path) -> None:
    async with running(folder) as run:
        await run.until_training()
        os.kill(run.roles.pids()["ps_1"], signal.SIGKILL)
        outcome = await run.outcome()
    assert outcome.exit_code == 1
    assert "ps_1 (role ps on" in outcome.message
    assert "ended: killed by SIGKILL" in outcome.message


async def test_a_server_that_fails_is_the_cause_though_the_coordinator_is_heard_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adamctl.launch.roles.SIGNAL_GRACE_S", 0.1)
    async with running(folder, ps_1="failing") as run:
        await run.until_training()
        run.tell("break")
        outcome = await run.outcome()
    lines = outcome.message.splitlines()
    assert outcome.exit_code == 1
    assert "ps_1 (role ps on" in lines[0] and lines[0].endswith("ended: ValueError: a bug")
    assert lines[-3] == f"  the end of {run.roles.log('ps_1')}:"
    assert lines[-1].strip() == "ValueError: a bug", "what was logged after the error is no cause"


async def test_a_worker_that_can_only_fail_again_is_not_started_again(folder: Path) -> None:
    async with running(folder, worker_1="diverge", worker_2="diverge") as run:
        await run.until_training()
        run.tell("break")
        outcome = await run.outcome()
    assert [run.starts(node) for node in ("worker_1", "worker_2")] == [1, 1]
    assert outcome.exit_code == 1
    assert outcome.message in [f"worker_{number}: the loss is not finite; lower optimizer.lr" for number in (1, 2)]
    told = {message for progress in run.reporter.shown for message in progress.messages}
    assert told == {"begun"}, "what follows from a cause is not told before it"


@pytest.mark.parametrize("node", ["controller", "coordinator"])
async def test_so_does_any_other_role_the_run_needs_with_its_last_words(folder: Path, node: str) -> None:
    async with running(folder) as run:
        await run.until_training()
        run.tell(f"{node}.exit", "7")
        outcome = await run.outcome()
    assert outcome.exit_code == (7 if node == "coordinator" else 1)
    assert f"{node} (role {node} on" in outcome.message
    assert f"{node} was told to end" in outcome.message


async def test_a_coordinator_that_ends_with_a_clear_code_is_quoted(folder: Path) -> None:
    async with running(folder, coordinator="deaf") as run:
        await run.until(lambda: "coordinator" not in run.supervision.waiting_for)
        log = run.roles.log("coordinator")
        log.write_text("2026-05-01T12:00:00.123+02:00 ERROR coordinator coordinator nothing to resume from\n")
        run.tell("coordinator.exit", "2")
        outcome = await run.outcome()
    assert (outcome.exit_code, outcome.message) == (2, "coordinator: nothing to resume from")


async def test_a_role_that_refuses_to_start_is_not_started_again(folder: Path) -> None:
    async with running(folder, worker_2="refuse") as run:
        outcome = await run.outcome()
        assert run.starts("worker_2") == 1
    assert (outcome.exit_code, outcome.message) == (2, "worker_2: --threads: expected at least 1, found 0")


async def test_a_failed_run_says_why(folder: Path) -> None:
    async with running(folder) as run:
        await run.until_training()
        run.tell("fail")
        outcome = await run.outcome()
    assert outcome.exit_code == 1
    assert "no server is left" in outcome.message


@pytest.fixture(autouse=True)
def heeded_hangup() -> Iterator[None]:
    """SIGHUP as it is in a terminal, also where the tests are run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
async def test_a_signal_stops_the_run_through_its_coordinator(folder: Path, number: int, exit_code: int) -> None:
    async with running(folder) as run:
        await run.until_training()
        os.kill(os.getpid(), number)
        outcome = await run.outcome()
    assert (outcome.exit_code, outcome.signal) == (exit_code, number)
    assert outcome.progress is not None and outcome.progress.state == "stopped"
    assert {end.status for end in run.roles.ends.values()} == {0}


async def test_a_hangup_after_another_signal_does_not_cut_the_end_short(folder: Path) -> None:
    async with running(folder) as run:
        await run.until_training()
        os.kill(os.getpid(), signal.SIGHUP)
        await run.until(lambda: run.reporter.notes)
        os.kill(os.getpid(), signal.SIGHUP)
        outcome = await run.outcome()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, "the shell may send one more"
    assert (outcome.exit_code, outcome.signal) == (129, signal.SIGHUP)
    assert outcome.progress is not None and outcome.progress.state == "stopped"
    assert {end.status for end in run.roles.ends.values()} == {0}


async def test_a_queue_may_send_its_signal_twice(folder: Path) -> None:
    """Slurm sends SIGTERM to all processes of a job that is cancelled, and so does its script to the front."""
    async with running(folder) as run:
        await run.until_training()
        os.kill(os.getpid(), signal.SIGTERM)
        await run.until(lambda: run.reporter.notes)
        os.kill(os.getpid(), signal.SIGTERM)
        outcome = await run.outcome()
    assert (outcome.exit_code, outcome.signal) == (143, signal.SIGTERM)
    assert outcome.progress is not None and outcome.progress.state == "stopped"
    assert {end.status for end in run.roles.ends.values()} == {0}


async def test_an_ignored_hangup_stays_ignored(folder: Path) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    async with running(folder) as run:
        await run.until_training()
        os.kill(os.getpid(), signal.SIGHUP)
        run.tell("finish")
        outcome = await run.outcome()
    assert (outcome.exit_code, outcome.signal) == (0, 0)


async def test_a_signal_before_anything_serves(folder: Path) -> None:
    async with running(folder, coordinator="silent", ps_1="silent") as run:
        await run.until(lambda: run.starts("coordinator") and run.starts("ps_1"))
        os.kill(os.getpid(), signal.SIGINT)
        outcome = await run.outcome()
    assert outcome.exit_code == 130
    assert "SIGINT: the run is stopped before it began, so there is no checkpoint" in run.reporter.notes


async def test_a_second_signal_ends_roles_that_will_not_go_and_their_children(folder: Path) -> None:
    (folder / "stubborn").touch()
    async with running(folder) as run:
        await run.until_training()
        os.kill(os.getpid(), signal.SIGINT)
        await run.until(lambda: run.reporter.notes)
        os.kill(os.getpid(), signal.SIGINT)
        outcome = await run.outcome()
    assert outcome.exit_code == 130


async def test_its_time_counts_from_when_it_has_hosts_and_its_coordinator_may_be_away_at_its_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queued, serving, tried, stop = True, LocalRoles.newly_serving, list[str](), CoordinatorClient.stop

    async def away_at_first(client: CoordinatorClient, reason: str, checkpoint: bool) -> None:
        tried.append(reason)
        if len(tried) < 3:
            raise UnreachableError("it is being started again")
        await stop(client, reason, checkpoint)

    monkeypatch.setattr(LocalRoles, "newly_serving", lambda roles: [] if queued else serving(roles))
    monkeypatch.setattr(CoordinatorClient, "stop", away_at_first)
    async with running(folder, time_s=3.0) as run:
        await asyncio.sleep(1.6)
        assert not run.task.done()
        queued = False
        outcome = await run.outcome()
    assert outcome.exit_code == 1 and outcome.message == "the run was stopped: its 3 s are over; go on with --resume"
    assert len(tried) == 3 and outcome.progress is not None and outcome.progress.state == "stopped"


async def test_a_run_whose_hosts_go_is_stopped_with_a_checkpoint_and_keeps_nothing_to_look_at(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, failures, stop = list[Stop](), list[bool](), LocalRoles.stop

    async def stopping(roles: LocalRoles, ask: Ask, grace_s: float, failed: bool = False) -> list[str]:
        failures.append(failed)
        return await stop(roles, ask, grace_s, failed)

    monkeypatch.setattr(LocalRoles, "news", lambda roles: [*said, *said])
    monkeypatch.setattr(LocalRoles, "stop", stopping)
    async with running(folder) as run:
        await run.until_training()
        said.append(Stop("no host is left"))
        outcome = await run.outcome()
    assert outcome.exit_code == 1 and outcome.message == "the run was stopped: no host is left; go on with --resume"
    assert outcome.progress is not None and outcome.progress.state == "stopped"
    assert failures == [False], "hosts remove the stores of a run that was stopped"


async def test_it_says_whom_it_waits_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adamctl.launch.waits.FIRST_NOTE_S", 0.2)
    async with running(folder, ps_1="silent") as run:
        await run.until(lambda: any("waiting for" in note and "ps_1" in note for note in run.reporter.notes))
        run.tell("finish")
        await run.outcome()


async def test_roles_go_when_the_front_is_gone(folder: Path) -> None:
    """The lifeline: its end means that whoever started the roles is no more, even killed."""
    roles = LocalRoles([FakeRole("ps", "ps_1", (), "serve", str(folder))], folder, os.environ)
    roles.start()
    try:
        await _until(roles.newly_serving)
        roles._lifeline.close()
        await _until(roles.newly_ended)
    finally:
        roles.kill()


async def _until(condition: Callable[[], object]) -> None:
    for _ in range(round(WAIT_S / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen in time")

"""The end of a group is not the end of the run: only the second is told to the others by their lead."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from adamctl.errors import RunFailedError
from adamctl.roles.worker.partition import work
from adamctl.roles.worker.partition.work import GroupEndedError, GroupWork

CAUSE = "all passes are done"


class Lead:
    engine: Any = None
    flight_done = None

    def __init__(self, *of_group: Any) -> None:
        self.told: list[str] = []
        self.closed = False

    async def begin(self) -> None: ...

    async def end(self, cause: str) -> None:
        self.told.append(cause)

    async def close(self) -> None:
        self.closed = True


class Runner:
    """Ends as told."""

    over, failure = False, False

    def __init__(self, session: Any) -> None: ...

    async def run(self, stopping: asyncio.Event) -> str:
        if self.failure:
            raise RunFailedError("a server is gone")
        return CAUSE


async def led(monkeypatch: pytest.MonkeyPatch, *, over: bool, failure: bool = False) -> Lead:
    """Returns the lead of a group whose session has ended."""
    for name, instead in {
        "Lead": Lead,
        "PartitionEngine": lambda *parts: None,
        "SessionRunner": type("Ending", (Runner,), {"over": over, "failure": failure}),
        "Session": lambda *inputs: None,
        "reporter_of": lambda network: 0,
    }.items():
        monkeypatch.setattr(work, name, instead)
    context = SimpleNamespace(node="w1", incarnation=1, stopping=asyncio.Event(), log=logging.getLogger("test_work"))
    part: Any = GroupWork.__new__(GroupWork)
    part.plan = SimpleNamespace(in_short="rows conv2d1")
    part._context, part._own, part._links, part._coordinator = context, 0, object(), None
    group = SimpleNamespace(job="job", members=(1, 2), batch=4, epoch=3)
    experiment = SimpleNamespace(train=SimpleNamespace(batch=4), optimizer=SimpleNamespace(is_batch=False))
    parts = SimpleNamespace(group=group, network=None, experiment=experiment, layout=None, threads=1)
    try:
        assert await part._work(parts, None, None, None) == CAUSE
    except RunFailedError:
        assert failure
    lead = part._lead
    assert isinstance(lead, Lead) and lead.closed
    return lead


async def test_the_others_are_told_when_the_run_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await led(monkeypatch, over=True)).told == [CAUSE]


@pytest.mark.parametrize("failure", [False, True])
async def test_a_lead_that_stops_or_fails_does_not_end_the_run_for_the_others(
    failure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hear of it from the coordinator, and join again."""
    assert not (await led(monkeypatch, over=False, failure=failure)).told


class Engine:
    """Takes a while to stop its threads."""

    def __init__(self) -> None:
        self.hangs, self.closing = True, asyncio.Event()
        self._halting: asyncio.Future[None] | None = None

    async def _halt(self) -> None:
        await asyncio.sleep(0.02)
        self.hangs = False

    async def close(self) -> None:
        self.closing.set()
        if self._halting is None:
            self._halting = asyncio.ensure_future(self._halt())
        await asyncio.shield(self._halting)


async def test_a_group_that_ends_while_a_member_stops_its_threads_does_not_end_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Engine()

    async def nothing(*of: Any, **more: Any) -> None: ...

    async def fails(*of: Any) -> str:
        part._engine = engine  # type: ignore[assignment]
        try:
            raise RunFailedError("a member has gone")
        finally:
            await engine.close()

    async def watches(*of: Any) -> None:
        await engine.closing.wait()
        raise GroupEndedError("the group is dissolved", ended=False)

    client = SimpleNamespace(open=nothing, attach=nothing, close=nothing)
    monkeypatch.setattr(work, "cut_network", lambda *of: None)
    monkeypatch.setattr(work, "cuts_of", lambda plan: None)
    monkeypatch.setattr(work, "flight_size", lambda *of: 1)
    monkeypatch.setattr(work, "flights_of", lambda *of: 2)
    monkeypatch.setattr(work, "Parts", lambda *of: None)
    monkeypatch.setattr(work, "_weighted", lambda parts, dataset: parts)
    monkeypatch.setattr(work, "DataClient", SimpleNamespace(from_context=lambda *of: client))
    monkeypatch.setattr(work, "Links", lambda *of: SimpleNamespace(close=nothing))
    part: Any = GroupWork.__new__(GroupWork)
    members = (SimpleNamespace(host="here", node="w1"),)
    part._job, part._own, part.plan = "job", 0, SimpleNamespace(hash="plan")
    part._experiment = SimpleNamespace(model=SimpleNamespace(input=(1,)), data=None, seed=1)
    part._context = SimpleNamespace(log=logging.getLogger("test_work"))
    part._joined = SimpleNamespace(reply=SimpleNamespace(group_epoch=3), members=members, data_servers=())
    part._lead = part._telling = part._engine = part.runner = None
    part._parameters_of, part._work, part._watch = lambda *of: client, fails, watches
    with pytest.raises(GroupEndedError):
        await part.run(None, 1, 1, 0, None)
    assert not engine.hangs

"""Who comes back in time is taken up again, who does not ends the run, and nobody is waited for for ever."""

from __future__ import annotations

from math import inf

import pytest

from adamctl.config.records import NodeRecord
from adamctl.roles.coordinator.core.events import Tick
from adamctl.roles.coordinator.core.instructions import (
    AttachAgain,
    FailRun,
    Instruction,
    LoseWorker,
    ReadKeys,
    Say,
    WatchServer,
)
from adamctl.roles.coordinator.core.losses import (
    ATTACH_S_MIN,
    NO_MEMBER,
    Attached,
    Event,
    KeysRead,
    LossCore,
    LossPlan,
    NodeGone,
    ServerLost,
)

COPIES = LossPlan(copies=True, kept=True, server_again_s=60.0, data_again_s=30.0, look_every_s=0.25)
KEPT = LossPlan(copies=False, kept=True, server_again_s=60.0, data_again_s=30.0, look_every_s=0.25)
NEITHER = LossPlan(copies=False, kept=False, server_again_s=60.0, data_again_s=30.0, look_every_s=0.25)
PLANS = pytest.mark.parametrize("plan", [COPIES, KEPT, NEITHER], ids=["copies", "kept", "neither"])


def server(node: str, incarnation: int = 1) -> NodeRecord:
    return NodeRecord(node, "ps", incarnation, (f"{node}:1",), "h", 1)


def data_server(node: str, incarnation: int = 1) -> NodeRecord:
    return NodeRecord(node, "data", incarnation, (f"{node}:1",), "h", 1)


def core_of(plan: LossPlan, servers: str = "p q", data: str = "d e") -> LossCore:
    return LossCore(plan, [server(node) for node in servers.split()], [data_server(node) for node in data.split()])


def said(instructions: list[Instruction]) -> list[str]:
    return [one.text for one in instructions if isinstance(one, Say)]


def part_lost(node: str, cause: str) -> FailRun:
    return FailRun(
        f"parameter server {node} ({node}:1) is gone: {cause}. Its part of the model is lost; "
        "continue from the last checkpoint with --resume and this run's folder"
    )


def reads(core: LossCore, event: Event, now_s: float) -> ReadKeys:
    """Takes an event after which keys are read once."""
    (found,) = (one for one in core.step(event, now_s) if isinstance(one, ReadKeys))
    return found


# --- what is watched ------------------------------------------------------------------------------------------------


@PLANS
def test_every_parameter_server_is_watched_from_the_beginning(plan: LossPlan) -> None:
    core = core_of(plan)
    assert core.begin() == [WatchServer(server("p")), WatchServer(server("q"))]
    assert core.wakeup_s() == inf and not core.waiting


@PLANS
def test_who_is_no_server_of_the_run_may_be_a_worker_of_it(plan: LossPlan) -> None:
    core = core_of(plan)
    assert core.step(NodeGone("w", 7), 1.0) == [LoseWorker("w", 7, NO_MEMBER)]
    assert core.wakeup_s() == inf


@PLANS
def test_a_process_of_a_servers_name_that_the_run_does_not_use_may_go(plan: LossPlan) -> None:
    core = core_of(plan)
    for event in (NodeGone("p", 9), NodeGone("d", 9), ServerLost("q", 9, "refused")):
        assert core.step(event, 1.0) == []


@PLANS
def test_a_tick_alone_does_nothing(plan: LossPlan) -> None:
    assert core_of(plan).step(Tick(), 1000.0) == []


# --- a server whose part is nowhere else ----------------------------------------------------------------------------


@pytest.mark.parametrize("event", [ServerLost("p", 1, "refused"), NodeGone("p", 1)], ids=["connection", "key"])
def test_a_part_that_is_nowhere_else_is_lost_at_once(event: ServerLost | NodeGone) -> None:
    core = core_of(NEITHER)
    cause = event.cause if isinstance(event, ServerLost) else NO_MEMBER
    assert core.step(event, 1.0) == [part_lost("p", cause)]
    assert core.wakeup_s() == inf


# --- a server that keeps its part -----------------------------------------------------------------------------------


def test_a_server_that_keeps_its_part_is_waited_for() -> None:
    core = core_of(KEPT)
    assert core.step(ServerLost("p", 1, "refused"), 1.0) == [
        Say("parameter server p is gone; waiting for it to restart with its part"),
        ReadKeys(1, ("p",)),
    ]
    assert core.waiting and core.wakeup_s() == 61.0


@pytest.mark.parametrize("plan", [COPIES, KEPT], ids=["copies", "kept"])
def test_a_loss_that_is_told_of_twice_is_one(plan: LossPlan) -> None:
    core = core_of(plan)
    core.step(ServerLost("p", 1, "refused"), 1.0)
    assert core.step(NodeGone("p", 1), 2.0) == []
    assert core.step(ServerLost("p", 1, "refused"), 3.0) == []


def test_keys_are_read_again_a_little_later_as_long_as_there_is_nobody() -> None:
    core = core_of(KEPT)
    first = reads(core, ServerLost("p", 1, "refused"), 1.0)
    assert core.step(Tick(), 5.0) == []  # they are being read
    assert core.step(KeysRead(first.wait, ()), 5.5) == []
    assert core.wakeup_s() == 5.75
    assert core.step(Tick(), 5.7) == []
    assert core.step(Tick(), 5.75) == [ReadKeys(first.wait, ("p",))]


def test_the_key_of_the_lost_process_is_not_the_next_one() -> None:
    core = core_of(KEPT)
    first = reads(core, ServerLost("p", 1, "refused"), 1.0)
    assert core.step(KeysRead(first.wait, (server("p"),)), 2.0) == []
    assert core.waiting


def test_a_process_that_went_before_its_key_was_read_is_not_the_next_one() -> None:
    core = core_of(KEPT)
    first = reads(core, ServerLost("p", 1, "refused"), 1.0)
    core.step(NodeGone("p", 2), 1.5)
    assert core.step(KeysRead(first.wait, (server("p", 2),)), 2.0) == []
    assert core.waiting
    second = reads(core, Tick(), 2.25)
    assert WatchServer(server("p", 3)) in core.step(KeysRead(second.wait, (server("p", 3),)), 2.5)


def test_clients_attach_to_a_server_that_came_back() -> None:
    core = core_of(KEPT)
    first = reads(core, ServerLost("p", 1, "refused"), 1.0)
    again = server("p", 2)
    assert core.step(KeysRead(first.wait, (again,)), 11.0) == [WatchServer(again), AttachAgain("p", 50.0)]
    assert not core.waiting and core.wakeup_s() == inf
    assert core.step(Attached("p"), 12.0) == [Say("parameter server p is back")]


def test_clients_have_a_moment_to_attach_to_one_that_came_back_at_the_last() -> None:
    core = core_of(KEPT)
    first = reads(core, ServerLost("p", 1, "refused"), 1.0)
    assert AttachAgain("p", ATTACH_S_MIN) in core.step(KeysRead(first.wait, (server("p", 2),)), 60.9)


def test_one_that_does_not_come_back_in_time_fails_the_run() -> None:
    core = core_of(KEPT)
    first = reads(core, ServerLost("p", 1, "refused"), 1.0)
    assert core.step(Tick(), 60.9) == []
    assert core.step(Tick(), 61.0) == [part_lost("p", "refused")]
    assert not core.waiting and core.wakeup_s() == inf
    assert core.step(KeysRead(first.wait, (server("p", 2),)), 62.0) == []


def test_one_that_came_back_may_be_lost_again_and_has_as_much_time() -> None:
    core = core_of(KEPT)
    first = reads(core, ServerLost("p", 1, "refused"), 1.0)
    core.step(KeysRead(first.wait, (server("p", 2),)), 40.0)
    second = reads(core, ServerLost("p", 2, "refused"), 50.0)
    assert second.wait != first.wait
    assert core.step(Tick(), 109.9) == []
    assert core.step(Tick(), 110.0) == [part_lost("p", "refused")]


def test_each_lost_server_is_waited_for_by_itself() -> None:
    core = core_of(KEPT)
    first = reads(core, ServerLost("p", 1, "refused"), 1.0)
    second = reads(core, NodeGone("q", 1), 11.0)
    core.step(KeysRead(first.wait, (server("p", 2),)), 12.0)
    assert core.step(KeysRead(second.wait, ()), 20.0) == []
    assert core.step(Tick(), 70.9) == [ReadKeys(second.wait, ("q",))]
    assert core.step(Tick(), 71.0) == [part_lost("q", NO_MEMBER)]


# --- a server whose part others have --------------------------------------------------------------------------------


def test_others_take_the_part_of_a_lost_server_over() -> None:
    core = core_of(COPIES)
    assert core.step(ServerLost("p", 1, "refused"), 1.0) == [
        Say("parameter server p is gone (refused); others take over its part"),
        ReadKeys(1, ("p",)),
    ]


def test_one_with_copies_that_came_back_is_watched_and_nobody_needs_to_attach() -> None:
    core = core_of(COPIES)
    first = reads(core, NodeGone("p", 1), 1.0)
    again = server("p", 2)
    assert core.step(KeysRead(first.wait, (again,)), 500.0) == [
        WatchServer(again),
        Say("parameter server p is back and gets new copies"),
    ]
    assert ("p", 2) in core.servers and not core.waiting


def test_one_with_copies_may_stay_away_while_another_is_left() -> None:
    core = core_of(COPIES)
    reads(core, ServerLost("p", 1, "refused"), 1.0)
    for number in range(1, 6):
        assert core.wakeup_s() == 1.0 + 60.0 * number
        assert core.step(Tick(), core.wakeup_s()) == []
    assert core.waiting


def test_the_run_fails_when_a_wait_ends_and_no_server_is_left() -> None:
    core = core_of(COPIES)
    reads(core, ServerLost("p", 1, "refused"), 1.0)
    reads(core, ServerLost("q", 1, "refused"), 50.0)
    assert core.step(Tick(), 60.9) == []
    assert core.step(Tick(), 61.0) == [part_lost("p", "no parameter server came back within 60 s")]
    assert core.step(Tick(), 110.0) == [part_lost("q", "no parameter server came back within 60 s")]
    assert core.wakeup_s() == inf


def test_one_of_them_that_came_back_is_enough() -> None:
    core = core_of(COPIES)
    reads(core, ServerLost("p", 1, "refused"), 1.0)
    second = reads(core, ServerLost("q", 1, "refused"), 50.0)
    core.step(KeysRead(second.wait, (server("q", 2),)), 55.0)
    assert core.step(Tick(), 61.0) == []
    assert core.wakeup_s() == 121.0


# --- data servers ---------------------------------------------------------------------------------------------------


@PLANS
def test_one_data_server_of_several_may_go(plan: LossPlan) -> None:
    core = core_of(plan)
    assert core.step(NodeGone("d", 1), 1.0) == [Say("data server d is gone")]
    assert core.data == {("e", 1)} and core.wakeup_s() == inf


@PLANS
def test_when_the_last_data_server_goes_any_is_waited_for(plan: LossPlan) -> None:
    core = core_of(plan)
    core.step(NodeGone("d", 1), 1.0)
    assert core.step(NodeGone("e", 1), 2.0) == [Say("data server e is gone"), ReadKeys(1, ("d", "e"))]
    assert core.wakeup_s() == 32.0


def test_all_data_servers_that_came_back_are_used() -> None:
    core = core_of(KEPT)
    core.step(NodeGone("d", 1), 1.0)
    first = reads(core, NodeGone("e", 1), 2.0)
    back = core.step(KeysRead(first.wait, (data_server("d", 2), data_server("e", 2))), 3.0)
    assert said(back) == ["data server d is back", "data server e is back"]
    assert core.data == {("d", 2), ("e", 2)} and not core.waiting
    assert said(core.step(NodeGone("d", 2), 4.0)) == ["data server d is gone"]
    assert not core.waiting


def test_a_data_server_that_the_run_did_not_begin_with_may_take_the_place_of_the_last() -> None:
    core = core_of(KEPT, data="d")
    first = reads(core, NodeGone("d", 1), 1.0)
    assert said(core.step(KeysRead(first.wait, (data_server("f", 5),)), 2.0)) == ["data server f takes its place"]
    assert core.data == {("f", 5)} and not core.waiting
    second = core.step(NodeGone("f", 5), 3.0)
    assert said(second) == ["data server f is gone"] and core.waiting, "it is no worker"


def test_a_data_server_whose_key_tells_of_the_lost_process_is_not_back() -> None:
    core = core_of(KEPT, data="d")
    first = reads(core, NodeGone("d", 1), 2.0)
    assert core.step(KeysRead(first.wait, (data_server("d"),)), 3.0) == []
    core.step(NodeGone("d", 2), 3.1)
    second = reads(core, Tick(), 3.25)
    assert core.step(KeysRead(second.wait, (data_server("d", 2),)), 3.5) == []
    assert core.waiting and not core.data


def test_without_any_data_server_the_run_fails_in_time() -> None:
    core = core_of(KEPT)
    core.step(NodeGone("d", 1), 1.0)
    first = reads(core, NodeGone("e", 1), 2.0)
    core.step(KeysRead(first.wait, ()), 3.0)
    assert core.step(Tick(), 31.9) == [ReadKeys(first.wait, ("d", "e"))]
    assert core.step(Tick(), 32.0) == [FailRun("data server e is gone, and it was the last one")]
    assert core.step(KeysRead(first.wait, (data_server("d", 2),)), 33.0) == []
    assert core.wakeup_s() == inf


def test_the_last_data_server_may_be_lost_again_and_again() -> None:
    core = core_of(KEPT, data="d")
    for incarnation in range(1, 4):
        now_s = 20.0 * incarnation
        asked = reads(core, NodeGone("d", incarnation), now_s)
        assert core.wakeup_s() == now_s + 30.0
        core.step(KeysRead(asked.wait, (data_server("d", incarnation + 1),)), now_s + 10.0)
        assert not core.waiting
